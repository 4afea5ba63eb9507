"""`python -m converters`: `eagle3-jax convert` under the name of this package."""

import sys

from eagle3_jax.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["convert", *sys.argv[1:]]))
