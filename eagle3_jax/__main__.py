"""`python -m eagle3_jax` is `eagle3-jax`."""

import sys

from eagle3_jax.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
