"""The options of gpu_first.sh, and the parts that they choose. Refuses what contradicts itself and what would
be ignored."""

import argparse
import fnmatch
import math
import re
from pathlib import Path

import parts
from bundle import refuse
from runner import ENDING

SIZES = (4, 8)  # GPUs of a host that the bundle has plans for


class Parser(argparse.ArgumentParser):
    def error(self, message):
        refuse(f"{message} (gpu_first.sh --help)")


def seconds(word):
    number = float(word)
    if not math.isfinite(number) or number <= 0:
        raise argparse.ArgumentTypeError(f"{word}: not a number of seconds")
    return number


def parse(words=None):
    parser = Parser(
        prog="gpu_first.sh",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="What a machine with GPUs shows in 420 s, the most valuable first.",
        epilog=(
            "PYTHON names the python3 that has torch. Exit codes: 0 what ran has passed; 1 something failed"
            " or was not over in time; 2 it cannot begin;\n3 nothing ran; 77 nothing failed, and there is no"
            " device; 128 + n stopped by signal n."
        ),
    )
    parser.add_argument(
        "--second",
        action="store_true",
        help="the second list: all equality cases, and step times with their spread (about an hour)",
    )
    parser.add_argument(
        "--machine", type=int, metavar="N", help="the list for one machine with N GPUs, 4 or 8"
    )
    parser.add_argument(
        "--hosts",
        metavar="HOST,HOST",
        help="the list for two hosts, with the bundle in the same folder of each",
    )
    parser.add_argument("--per-host", type=int, metavar="N", help="GPUs of each, 4 or 8 (default: 8)")
    parser.add_argument(
        "--list", action="store_true", help="print the parts, with commands that can be pasted, and end"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="these parts (a pattern as of files; may be repeated)"
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        help=f"for all of it, {ENDING} of them kept for the end (default: 420; the other lists: 3600)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help=(
            "results.jsonl, outputs and stacks (default: gpu_results); a part that is run again there"
            " replaces its output, stacks and run"
        ),
    )
    parser.add_argument(
        "--env",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="run this command in the bundle's folder, as parts are started; goes alone",
    )
    arguments = parser.parse_args(words)
    if arguments.env is not None:
        if not arguments.env:
            refuse("--env needs a command: gpu_first.sh --env bin/stagecraft doctor")
        if any(
            value is not None and value is not False
            for name, value in vars(arguments).items()
            if name != "env"
        ):
            refuse("--env goes alone, before its command")
        return arguments
    check(arguments)
    arguments.out = Path(arguments.out or "gpu_results").resolve()
    return arguments


def check(arguments):
    lists = [
        name
        for name, value in (
            ("--second", arguments.second or None),
            ("--machine", arguments.machine),
            ("--hosts", arguments.hosts),
        )
        if value is not None
    ]
    if len(lists) > 1:
        refuse(f"{' and '.join(lists)}: each is a list of its own; choose one")
    if arguments.machine is not None and arguments.machine not in SIZES:
        refuse(
            f"--machine {arguments.machine}: this bundle has no plans/gpt2_medium.{arguments.machine}.json"
            " and the like; takes 4 or 8 GPUs"
        )
    if arguments.per_host is not None and arguments.hosts is None:
        refuse("--per-host goes with --hosts")
    if arguments.per_host is not None and arguments.per_host not in SIZES:
        refuse(f"--per-host {arguments.per_host}: takes 4 or 8 GPUs")
    if arguments.hosts is not None:
        hosts = arguments.hosts.split(",")
        wrong = [host for host in hosts if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", host)]
        if wrong or len(hosts) != 2 or len(set(hosts)) != 2:
            refuse(
                f"--hosts '{arguments.hosts}': takes two hosts by name or address, as in --hosts A,B"
                + (f"; '{wrong[0]}' is none" if wrong else "")
            )
    if arguments.out == "":
        refuse("--out needs a folder")


def choose(arguments):
    if arguments.hosts is not None:
        chosen = parts.two_hosts(arguments.hosts.split(","), arguments.per_host or 8)
    elif arguments.machine is not None:
        chosen = parts.machine(arguments.machine)
    else:
        chosen = parts.second() if arguments.second else parts.first()
    names = [part.name for part in chosen]
    for pattern in arguments.only or []:
        if not fnmatch.filter(names, pattern):
            refuse(f"no part {pattern or repr(pattern)}; there are {', '.join(sorted(names))}")
    chosen = [
        part
        for part in chosen
        if not arguments.only or any(fnmatch.fnmatch(part.name, pattern) for pattern in arguments.only)
    ]
    if arguments.seconds is None:
        arguments.seconds = 3600 if arguments.second or arguments.machine or arguments.hosts else 420
    shortest = min(part.needs for part in chosen)
    if arguments.seconds < shortest + ENDING:
        refuse(
            f"--seconds {arguments.seconds:g}: nothing would run: the shortest of these parts takes"
            f" {shortest} s, and {ENDING} s are kept for the end; give {shortest + ENDING} or more"
        )
    return chosen
