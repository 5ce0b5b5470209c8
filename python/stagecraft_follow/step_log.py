"""Steps of a pipeline in Python, sent to a tool as a run's are."""

import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stagecraft_planner.nearest import did_you_mean
from stagecraft_tools.console import first_line
from stagecraft_tools.refusal import Refused

from .command import TARGETS, make_target, target_class
from .figures import NO_NUMBER, Figure, Point, named, terms_of
from .run_directory import End
from .target import About

if TYPE_CHECKING:
    from stagecraft.steps import Step

EVERY = 1.0  # seconds between two times that steps are sent


class StepLog:
    """Sends at most once a second, in the thread of the caller. A tool that fails is a warning, once; what it
    did not take is lost, and the training goes on."""

    def __init__(
        self,
        to: str,
        at: str,
        project: str,
        name: str,
        config: dict[str, Any],
        plan: dict[str, Any],
        steps: int,
    ) -> None:
        """`steps`: made before. Throws Refused."""
        if to not in TARGETS:
            raise Refused(f"log_to: {to!r} is not one of {', '.join(TARGETS)}{did_you_mean(to, TARGETS)}")
        target = target_class(to)
        if at and not target.takes_at:
            raise Refused(f"log_to: {to}'s own variables say where it goes; leave at out")
        if not at and to == "tensorboard":
            raise Refused("log_to: tensorboard needs a folder: at=...")
        at = at or target.default_at
        self.to, self.predicted_ms = to, (plan.get("predicted") or {}).get("step_ms")
        self.target = make_target(to, About(name, "", config, plan, at, project, ""))
        self.points: list[Point] = []
        self.sent, self.warned, self.steps = 0.0, False, steps

    def step(self, made: "Step") -> None:
        self.steps = made.step + 1
        self.add(Point(self.steps, time.time(), tuple(self.figures_of(made))))

    def evaluation(self, made: "Step") -> None:
        values = {"loss": made.loss, "ms": made.seconds * 1e3}
        figures = (*named("validation", values), *terms_of("validation", made.terms))
        self.add(Point(self.steps, time.time(), figures))

    def figures_of(self, made: "Step") -> Iterator[Figure]:
        train = {
            "loss": NO_NUMBER if made.loss is None else made.loss,
            "gradient_norm": made.norm,
            "learning_rate": made.learning_rate,
            "loss_scale": made.loss_scale,
            "skipped": 1 if made.skipped else None,
        }
        seconds = made.seconds or None
        times = {
            "step_ms": made.seconds * 1e3,
            "step_predicted_ms": self.predicted_ms,
            "samples_per_second": seconds and made.samples / seconds,
            "tokens_per_second": seconds and made.tokens / seconds if made.tokens else None,
        }
        yield from named("train", train)
        yield from terms_of("train", made.terms)
        yield from named("time", times)
        for rank in made.ranks:
            parts = {
                f"{part}_ms": getattr(rank, part) * 1e3 for part in ("compute", "wait", "collective", "other")
            }
            yield from named("time", parts, {"rank": rank.rank})

    def add(self, point: Point) -> None:
        self.points.append(point)
        if time.monotonic() - self.sent >= EVERY:
            self.flush()

    def flush(self, *, goes_on: bool = True) -> None:
        points, self.points, self.sent = self.points, [], time.monotonic()
        try:
            if points:
                self.target.send(points)
        except Exception as error:
            if not self.warned:
                lost = "the training goes on" if goes_on else f"it lacks the last {len(points)} points"
                warnings.warn(f"{self.to}: {first_line(error)}; {lost}", stacklevel=3)
            self.warned = True

    def close(self) -> None:
        self.flush(goes_on=False)
        try:
            self.target.close(End("finished", 0))
        except Exception as error:
            if not self.warned:
                warnings.warn(f"{self.to}: {first_line(error)}", stacklevel=3)
