"""The words of a tool's command line: what is wrong with them is one line, with the name that was meant."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from stagecraft_planner.nearest import did_you_mean

from .refusal import Refused

REQUIRED = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """As argparse's, whose options are written in full: a shortened one would mean another one day.

    Throws Refused for what is not to be understood, so `console.run` has to be around it."""

    def __init__(self, tool: str, description: str) -> None:
        super().__init__(tool, description=" ".join(description.split()), allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        self._refuse_unknown(given)
        return super().parse_known_args(given, namespace)

    def _refuse_unknown(self, given: Sequence[str]) -> None:
        """Before argparse misses what a misspelled option was to be."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for word in given:
            name = word.partition("=")[0]
            if name == "--":
                return
            if name.startswith("--") and name not in known:
                self.error(f"there is no option {name}{did_you_mean(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f'"{value}" is not one of {", ".join(names)}{did_you_mean(str(value), names)}'
            )

    def error(self, message: str) -> NoReturn:
        if message.startswith(REQUIRED):
            message = f"{message.removeprefix(REQUIRED)}: is missing"
        raise Refused(f"{message.removeprefix('argument ')} (see {self.prog} --help)")


def whole(least: int, most: int) -> Callable[[str], int]:
    """For `type=`: a whole number within these."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if least <= value <= most:
            return value
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, found {text!r}")

    return read


def at_least_zero(unit: str = "") -> Callable[[str], float]:
    """For `type=`: a finite number, as of "seconds"."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and value >= 0:
            return value
        raise argparse.ArgumentTypeError(
            f"expected a number{' of ' if unit else ''}{unit}, 0 or more, found {text!r}"
        )

    return read
