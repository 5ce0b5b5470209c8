"""Trackio. TRACKIO_DIR, TRACKIO_SERVER_URL and TRACKIO_SPACE_ID say where it goes, as everywhere."""

import math
import secrets
from collections.abc import Sequence

from .figures import Point
from .report import Report
from .run_directory import End
from .target import About, Target


class Trackio(Target):
    modules = "trackio"
    takes_at = False
    variables = ("TRACKIO_DIR", "TRACKIO_SERVER_URL", "TRACKIO_SPACE_ID")

    def __init__(self, about: About) -> None:
        import trackio

        self.trackio = trackio
        # Two runs may have the name of a folder, and trackio's resume goes by the name.
        self.id = about.id or f"{about.name}-{secrets.token_hex(2)}"
        self.run = trackio.init(
            project=about.project,
            name=self.id,
            resume="allow",
            config={"run_dir": about.run_dir, **about.config},
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.step = 0

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            self.step = point.step
            # Its JSON has no number that is none.
            row = {f.flat: f.number if math.isfinite(f.number) else None for f in point.figures}
            self.run.log({**row, "time/written": point.time}, step=point.step)

    def send_report(self, report: Report) -> None:
        self.run.log({"report": self.trackio.Markdown(f"```\n{report.text}```\n")}, step=self.step)
        self.run.log_artifact(report.html, name=f"report-{self.id}", type="report")

    def close(self, end: End | None) -> None:
        self.trackio.finish()
