"""`python -m stagecraft train run.json`: the command line, from the package."""

import sys

from .errors import InputError


def main() -> int:
    try:
        from .engine import _engine
    except InputError as error:
        print(f"stagecraft: {error}", file=sys.stderr)
        return error.code
    return int(_engine.run_command_line(["stagecraft", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
