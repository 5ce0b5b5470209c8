"""`python -m stagecraft train run.json`: the command line, from the package. `torchrun --nproc-per-node 2 -m
stagecraft train run.json` makes each process a rank."""

import sys

from .errors import InputError
from .torchrun import leave_error

OVER_A_GROUP = ("train", "profile")  # verbs that processes make together


def words(given: list[str]) -> list[str]:
    """With the group of torchrun's processes, where there are several."""
    from .engine import _engine
    from .launch import new_group

    launch = _engine.launch()
    if not launch["torch"] or launch["world"] == 1 or not given or given[0] not in OVER_A_GROUP:
        return given
    return [given[0], "--process-group", new_group().group_name, *given[1:]]


def main() -> int:
    if sys.argv[1:2] == ["follow"]:  # needs no engine, and no torch
        from stagecraft_follow.command import program

        del sys.argv[1]
        return program()
    if sys.argv[1:2] == ["generate"]:
        from stagecraft_generate.command import program as generate

        del sys.argv[1]
        return generate()
    try:
        from .engine import _engine

        given = words(sys.argv[1:])
    except InputError as error:
        print(f"stagecraft: {error}", file=sys.stderr)
        leave_error(error)
        return error.code
    return int(_engine.run_command_line(["stagecraft", *given]))


if __name__ == "__main__":
    sys.exit(main())
