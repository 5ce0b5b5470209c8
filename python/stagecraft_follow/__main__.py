"""`python -m stagecraft_follow RUN_DIR --to TARGET`."""

import sys

from .command import program

if __name__ == "__main__":
    sys.exit(program())
