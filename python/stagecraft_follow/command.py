"""stagecraft-follow: sends a run's figures to a tool that people watch runs in, while it goes or
afterwards."""

import argparse
import importlib
import os
import sys

from stagecraft_tools.arguments import Parser, at_least_zero
from stagecraft_tools.console import Stopped, add_traceback, first_line, run
from stagecraft_tools.refusal import Refused

from .follower import Follower, Options
from .run_directory import RunDirectory
from .target import About, Target

TOOL = "stagecraft-follow"
PROJECT = "stagecraft"
# Imported when asked for: none of them is needed for another one.
TARGETS = {
    "tensorboard": "TensorBoard",
    "wandb": "Wandb",
    "trackio": "Trackio",
    "mlflow": "Mlflow",
    "prometheus": "Prometheus",
    "otlp": "Otlp",
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(TOOL, __doc__.partition(": ")[2])
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", help="of a run that goes, is over, or is about to begin"
    )
    parser.add_argument("--to", required=True, choices=TARGETS, help="the tool")
    parser.add_argument(
        "--at",
        default="",
        metavar="PLACE",
        help=(
            "tensorboard: a folder (default: RUN_DIR/tensorboard); mlflow: a tracking URI"
            " (MLFLOW_TRACKING_URI); prometheus: HOST:PORT to be read at (127.0.0.1:9400); otlp: a"
            " collector's URL (OTEL_EXPORTER_OTLP_ENDPOINT)"
        ),
    )
    parser.add_argument(
        "--project",
        metavar="NAME",
        help="wandb's and trackio's project, mlflow's experiment, otlp's service (default: stagecraft)",
    )
    parser.add_argument("--name", metavar="NAME", help="of the run (default: that of its directory)")
    parser.add_argument(
        "--every",
        type=at_least_zero("seconds"),
        default=1.0,
        metavar="SECONDS",
        help="between two looks (default: 1)",
    )
    parser.add_argument(
        "--patience",
        type=at_least_zero("seconds"),
        default=60.0,
        metavar="SECONDS",
        help="that a run which was stopped or killed has to begin again (default: 60)",
    )
    parser.add_argument(
        "--state", metavar="FOLDER", help="how far it came is written there (default: RUN_DIR/follow)"
    )
    add_traceback(parser)
    return parser.parse_args(arguments)


def target_class(name: str) -> type[Target]:
    module = importlib.import_module(f".to_{name}", __package__)
    found: type[Target] = getattr(module, TARGETS[name])
    return found


def make_target(name: str, about: About) -> Target:
    """Throws Refused where the client is missing or refuses to begin."""
    target = target_class(name)
    try:
        return target(about)
    except ModuleNotFoundError as error:
        raise Refused(
            f"there is no Python module {error.name} here: {sys.executable} -m pip install {target.modules}"
        ) from error
    except Refused:
        raise
    except Exception as error:
        where = f"{name} at {about.at}" if about.at else name
        raise Refused(f"{where}: {first_line(error)}") from error


def where_of(target: type[Target], at: str, project: str) -> str:
    """The same for the same place: how far it came is remembered by it."""
    found = [part for part in (at, *(os.environ.get(name, "") for name in target.variables)) if part]
    if target.has_project:
        found = [project, *(found or [f"from {os.getcwd()}"])]
    return ", ".join(found)


def options_of(given: argparse.Namespace) -> Options:
    target = target_class(given.to)
    if given.at and not target.takes_at:
        raise Refused(f"--at {given.at}: {given.to}'s own variables say where it goes; leave --at out")
    if given.project and not target.has_project:
        raise Refused(f"--project {given.project}: {given.to} has no projects; leave --project out")
    if given.name and not target.has_name:
        raise Refused(f"--name {given.name}: {given.to} calls a run by its folder: give --at")
    project = given.project or PROJECT
    directory = RunDirectory(given.run_dir)
    if why := directory.foreign():
        raise Refused(f"{given.run_dir}: {why}")
    if not directory.is_there():
        print(f"{TOOL}: {given.run_dir}: no run is there yet; it is waited for", file=sys.stderr)
    run_dir = directory.path
    at = given.at or target.default_at.format(run_dir=run_dir)
    if given.to == "tensorboard":
        at = os.path.abspath(at)

    return Options(
        run_dir=run_dir,
        to=given.to,
        make=lambda about: make_target(given.to, about),
        at=at,
        where=where_of(target, at, project),
        keeps=target.keeps,
        project=project,
        name=given.name or os.path.basename(run_dir),
        every=given.every,
        patience=given.patience,
        state=given.state or os.path.join(run_dir, "follow"),
    )


def main(arguments: list[str] | None = None) -> int:
    with Follower(options_of(parse(arguments))) as follower:
        try:
            follower.follow()
        except Stopped as stopped:
            print(
                f"{TOOL}: left at step {follower.step}; the same command goes on from there", file=sys.stderr
            )
            return 128 + stopped.number
    return 0


def program() -> int:
    return run(TOOL, main, "")
