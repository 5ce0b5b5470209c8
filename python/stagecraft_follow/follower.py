"""Follows a run directory to its end, over restarts, and sends what is new."""

import contextlib
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stagecraft_tools.console import STOPS, first_line, stop
from stagecraft_tools.refusal import Refused

from .figures import Point, point_of_line, point_of_report
from .metrics_file import MetricsFile
from .place import Place
from .report import NoReport, make_report
from .run_directory import End, RunDirectory
from .target import About, Target

BATCH = 1000  # lines sent at once: about as many metrics as a second brings
AGAIN = (1, 2, 4, 8, 16)  # seconds before the target is asked again
UNKNOWN = (
    3600  # seconds of silence after which a run of another machine is over, where no file says that it is
)


@dataclass(frozen=True)
class Options:
    run_dir: str
    to: str
    make: Callable[[About], Target]
    at: str
    where: str  # for people, and to tell places from each other
    keeps: bool  # Target.keeps
    project: str
    name: str
    every: float
    patience: float
    state: str


class NotTaken(Refused):
    """The target does not answer, or does not want it."""

    code = 1


class Follower:
    """As a context it leaves the target in order, whatever ends it."""

    def __init__(self, options: Options) -> None:
        self.options, self.directory = options, RunDirectory(options.run_dir)
        self.place: Place | None = None
        self.target: Target | None = None
        self.predicted_ms: float | None = None

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave(None)

    @property
    def step(self) -> int:
        return max(self.place.step, 0) if self.place else 0

    def leave(self, end: End | None) -> None:
        target, place = self.target, self.place
        self.target = self.place = None
        try:
            if target is not None:
                target.close(end)
        finally:
            if place is not None:
                place.close()

    def follow(self) -> None:
        """To the end of the run. Another run that takes its place in the directory is followed as well."""
        while not self.follow_run():
            self.leave(None)
            say(f"{self.options.run_dir}: another run has begun there")

    def follow_run(self) -> bool:
        """Returns whether the run is over; false: another one took its place."""
        self.wait_for_run()
        metrics = MetricsFile(self.directory.file("metrics.jsonl"))
        self.place = place = Place(self.options.state, self.options.to, self.options.where)
        if self.nothing_is_new(place):
            say(f"{self.directory.end()}; nothing is new since it was sent")
            return True
        target = self.begin(place)
        rewinds = 0
        while True:
            run = self.directory.identity()
            if run and place.run and run != place.run:
                return False
            place.run = place.run or run
            over = self.is_over()  # before what it wrote last is read
            self.send_new(metrics, place, target)
            if metrics.rewinds > rewinds:
                rewinds = metrics.rewinds
                say("the run went back, as --resume does; steps that were sent before are not sent again")
            if over:
                self.finish(place, target)
                return True
            time.sleep(self.options.every)

    def wait_for_run(self) -> None:
        until = time.monotonic() + self.options.patience
        while not (self.directory.is_there() and self.has_begun()):
            if time.monotonic() >= until and not self.directory.is_held():
                raise Refused(
                    f"{self.options.run_dir}: is no run directory, and none within --patience"
                    f" {self.options.patience:g} seconds: a run makes it when it begins"
                )
            time.sleep(min(self.options.every, 0.2))

    def has_begun(self) -> bool:
        """Config and plan are part of what is sent. It may take minutes until a plan is made and proved, in
        which the run holds the directory."""
        return os.path.exists(self.directory.file("metrics.jsonl")) or all(
            self.directory.document(name) for name in ("config.json", "plan.json")
        )

    def nothing_is_new(self, place: Place) -> bool:
        """All of a run that is over was sent, its end with it."""
        if not self.options.keeps or place.end != self.fingerprint() or not self.is_over():
            return False
        lines = MetricsFile(self.directory.file("metrics.jsonl")).lines()
        return not any(place.is_new(line) for line, _ in lines)

    def begin(self, place: Place) -> Target:
        options = self.options
        if place.begin(self.directory.identity()):
            say("what was sent from here was of another run: this one begins anew")
        if not options.keeps:
            place.forget()
        self.target = target = options.make(
            About(
                name=options.name,
                run_dir=options.run_dir,
                config=self.directory.document("config.json"),
                plan=self.directory.document("plan.json"),
                at=options.at,
                project=options.project,
                id=place.id,
            )
        )
        place.id = target.id
        place.write()
        say(f"{options.run_dir} to {options.to}, {options.where}, after step {self.step}")
        return target

    def is_over(self) -> bool:
        held = self.directory.is_held()
        if held:
            return False
        end = self.directory.end()
        if end.word == "finished":
            return True
        known = held is False or end.word != "killed"
        return time.time() - self.directory.changed() >= (self.options.patience if known else UNKNOWN)

    def send_new(self, metrics: MetricsFile, place: Place, target: Target) -> None:
        points: list[Point] = []
        before = place.step, place.validation
        for line, at in metrics.lines():
            if not place.is_new(line):
                continue
            place.pass_line(line)
            if self.predicted_ms is None:
                self.predicted_ms = self.directory.predicted_ms()
            points.append(point_of_line(line, at, self.predicted_ms))
            if len(points) == BATCH:
                self.send(points, before)
                points, before = [], (place.step, place.validation)
        if points:
            self.send(points, before)

    def send(self, points: list[Point], before: tuple[int, int]) -> None:
        """`before`: how far the run was sent, should the target not take them."""
        place, target = self.place, self.target
        assert place is not None and target is not None
        place.write()
        on_its_way = False

        def call() -> None:
            nonlocal on_its_way
            on_its_way = True
            try:
                target.send(points)
            except Exception:
                on_its_way = False
                raise

        try:
            insist(call, self.options.to)
        finally:
            if not on_its_way:
                place.step, place.validation = before
                place.write()

    def finish(self, place: Place, target: Target) -> None:
        end = self.directory.end()
        said = f"{end}, {self.step} steps"
        with tempfile.TemporaryDirectory(prefix="stagecraft-follow-") as folder:
            try:
                report = make_report(self.options.run_dir, folder)
            except NoReport as error:
                said += f"; no report: {error}"
                complete = not self.directory.document("summary.json")  # there will be none
            else:
                said += ", and the report"
                complete = True
                point = point_of_report(report.figures, self.directory.changed())
                insist(lambda: target.send([point]), self.options.to)
                insist(lambda: target.send_report(report), self.options.to)
        if complete:
            place.end = self.fingerprint()
            place.write()
        self.leave(end)
        say(said)

    def fingerprint(self) -> str:
        """Of how the run ended."""
        found = hashlib.blake2b(digest_size=8)
        for name in ("summary.json", "exit.json"):
            found.update(json.dumps(self.directory.document(name)).encode())
        return found.hexdigest()


@contextlib.contextmanager
def stops_later() -> Iterator[None]:
    """A signal that asks for the end comes behind it: what is being sent is then sent as a whole. A second
    one does not wait."""
    came: list[int] = []

    def later(number: int, frame: object) -> None:
        came.append(number)
        if len(came) > 1:
            stop(number, frame)

    before = {number: signal.getsignal(number) for number in STOPS}
    ours = [number for number in STOPS if before[number] is stop]
    for number in ours:
        signal.signal(number, later)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
    if came:
        stop(came[0], None)


def insist(call: Callable[[], Any], to: str) -> None:
    """Again after a while, where it fails. Throws NotTaken."""
    for number, wait in enumerate((*AGAIN, None)):
        try:
            with stops_later():
                call()
            return
        except Exception as error:
            if wait is None:
                raise NotTaken(f"{to}: {first_line(error)}") from error
            if number == 0:
                say(f"{to}: {first_line(error)}; trying again")
            time.sleep(wait)


def say(line: str) -> None:
    print(f"stagecraft-follow: {line}", file=sys.stderr, flush=True)
