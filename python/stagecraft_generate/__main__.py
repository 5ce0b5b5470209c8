"""`python -m stagecraft_generate`."""

import sys

from .command import program

if __name__ == "__main__":
    sys.exit(program())
