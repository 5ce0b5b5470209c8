"""TensorBoard: event files in a folder, RUN_DIR/tensorboard unless --at names another."""

import json
import os
from collections.abc import Sequence
from typing import Any

from .figures import Point
from .report import Report
from .run_directory import End
from .target import About, Target


class TensorBoard(Target):
    modules = "tensorboard"
    has_project = False
    has_name = False
    default_at = "{run_dir}/tensorboard"

    def __init__(self, about: About) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.scalar_pb, self.text_pb = event_pb2.Event, scalar_pb, text_pb
        self.writer = EventFileWriter(about.at, max_queue_size=1000)  # a thread of its own writes
        self.step, self.time = 0, 0.0
        self.id = os.path.abspath(about.at)
        if not about.id:
            self.text("config", code(json.dumps(about.config, indent=2)))

    def add(self, summary: Any, step: int, time: float) -> None:
        self.writer.add_event(self.event(wall_time=time, step=step, summary=summary))

    def text(self, tag: str, text: str) -> None:
        self.add(self.text_pb(tag, text), self.step, self.time)

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            self.step, self.time = point.step, point.time
            for figure in point.figures:
                self.add(self.scalar_pb(figure.flat, figure.number), point.step, point.time)
        self.writer.flush()

    def send_report(self, report: Report) -> None:
        self.text("report", code(report.text))

    def close(self, end: End | None) -> None:
        if end is not None:
            self.text("end", str(end))
        self.writer.close()


def code(text: str) -> str:
    """Markdown that is shown as it stands."""
    return "".join(f"    {line}\n" for line in text.splitlines())
