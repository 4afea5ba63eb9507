"""Where slow things are kept: outside the repository, rebuilt by the command that made them."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """`$EAGLE3_JAX_CACHE`, or `~/.cache/eagle3-jax`."""
    return Path(os.environ.get("EAGLE3_JAX_CACHE", "~/.cache/eagle3-jax")).expanduser()
