"""Weights & Biases. WANDB_MODE, WANDB_BASE_URL and WANDB_DIR say where it goes, as everywhere."""

import secrets
from collections.abc import Sequence

from .figures import Point
from .report import Report
from .run_directory import End
from .target import About, Target


class Wandb(Target):
    modules = "wandb"
    takes_at = False
    variables = ("WANDB_BASE_URL", "WANDB_MODE")

    def __init__(self, about: About) -> None:
        import wandb

        self.wandb = wandb
        self.id = about.id or secrets.token_hex(4)
        self.run = wandb.init(
            project=about.project,
            id=self.id,
            name=about.name,
            resume="allow",
            config={"run_dir": about.run_dir, **about.config},
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        self.run.config.update({"plan": about.plan}, allow_val_change=True)

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            row = {figure.flat: figure.number for figure in point.figures}
            self.run.log({**row, "time/written": point.time}, step=point.step)

    def send_report(self, report: Report) -> None:
        artifact = self.wandb.Artifact(f"report-{self.id}", type="report")
        artifact.add_file(report.html, "report.html")
        with artifact.new_file("report.txt", encoding="utf-8") as file:
            file.write(report.text)
        self.run.log_artifact(artifact)

    def close(self, end: End | None) -> None:
        if end is not None:
            self.run.summary["end"] = str(end)
        self.run.finish(exit_code=end.code if end is not None else 0)
