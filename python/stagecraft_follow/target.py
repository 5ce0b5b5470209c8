"""What a target is: a tool that people watch runs in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .figures import Point
from .report import Report
from .run_directory import End


@dataclass(frozen=True)
class About:
    """What a target is told of a run at its beginning."""

    name: str
    run_dir: str
    config: dict[str, Any]
    plan: dict[str, Any]
    at: str  # where it goes; "" leaves that to the target's client
    project: str
    id: str  # what the target called the run before; "" for a new one


class Target:
    """One run in one tool. A class per tool, which imports the tool's client when it is made."""

    modules = ""  # what to install for it
    default_at = ""
    takes_at = True
    has_project = True
    has_name = True  # or a run is called by where it goes
    variables: tuple[str, ...] = ()  # of the environment, by which its client finds the place
    keeps = True  # what was sent; false: it shows the newest alone, and a new process begins anew
    id = ""  # what the target calls the run

    def __init__(self, about: About) -> None:
        raise NotImplementedError

    def send(self, points: Sequence[Point]) -> None:
        """In the order of their steps. When it returns they are on their way. Throws what the client
        throws; the same points may come again then."""
        raise NotImplementedError

    def send_report(self, report: Report) -> None:
        """The text and the page. Its figures come as a point."""

    def close(self, end: End | None) -> None:
        """None: the run goes on, and is followed no longer."""


def scalars(config: Any, prefix: str = "") -> dict[str, str | int | float | bool]:
    """A config as names and values: {"optimizer": {"params": {"lr": 1}}} is {"optimizer.params.lr": 1}."""
    if isinstance(config, dict):
        found: dict[str, str | int | float | bool] = {}
        for key, value in config.items():
            found.update(scalars(value, f"{prefix}.{key}" if prefix else key))
        return found
    if isinstance(config, list):
        return {prefix: " ".join(str(value) for value in config)} if config else {}
    return {} if config is None else {prefix: config}
