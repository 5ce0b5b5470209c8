"""`python -m stagecraft train run.json`: the command line, from the package."""

import sys


def main() -> int:
    import torch  # noqa: F401  # whose libraries the module needs

    from . import _engine

    return int(_engine.run_command_line(["stagecraft", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
