"""What was compiled once is kept on disk, where only the user can write.

JAX runs what it finds in its compilation cache, so a directory that others can write to is as good
as their code in this process.
"""

import os
import stat
import sys
from pathlib import Path

import jax

from eagle3_jax.cli.manners import cache_directory
from eagle3_jax.errors import InputError


def keep_compiled() -> None:
    """Read and write compiled programs under `$EAGLE3_JAX_CACHE` (`~/.cache/eagle3-jax`).

    A cache that the user gave JAX otherwise stays. Where the directory is not the user's own, or
    others may write into it, nothing is kept, and one line on stderr says so.
    """
    already = jax.config.values
    if not already["jax_enable_compilation_cache"] or already["jax_compilation_cache_dir"]:
        return
    directory = Path("compiled")
    try:
        home = cache_directory()
        directory = home / directory
        for made in (home, directory):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        wrong = _wrong(directory.lstat()) or _wrong(home.stat(), sticky=True)
    except (InputError, OSError) as error:
        wrong = str(error)
    if wrong is not None:
        print(f"note: {directory} keeps no compiled programs: {wrong}", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _wrong(status: os.stat_result, *, sticky: bool = False) -> str | None:
    """Why programs in a directory cannot be trusted, or nothing.

    Args:
        status: of the directory.
        sticky: it is the one above, where others may write what they cannot rename.
    """
    if not stat.S_ISDIR(status.st_mode):
        return "it is no directory of its own"
    if status.st_uid != os.geteuid() and not (sticky and status.st_uid == 0):
        return "it belongs to another user"
    if status.st_mode & 0o022 and not (sticky and status.st_mode & stat.S_ISVTX):
        return "others can write there"
    return None
