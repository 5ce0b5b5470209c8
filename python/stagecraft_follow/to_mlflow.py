"""MLflow: the tracking server or store that --at names, or MLFLOW_TRACKING_URI."""

import json
from collections.abc import Sequence

from .figures import Point
from .report import Report
from .run_directory import End
from .target import About, Target, scalars

MOST_METRICS = 1000  # of one call, and 100 parameters of 6000 letters: the server's own bounds
MOST_PARAMETERS = 100
LONGEST_PARAMETER = 6000
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED", "killed": "KILLED"}


class Mlflow(Target):
    modules = "mlflow-skinny"
    variables = ("MLFLOW_TRACKING_URI",)

    def __init__(self, about: About) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self.metric = Metric
        self.client = MlflowClient(about.at or None)
        self.id = about.id
        if self.id:
            self.client.update_run(self.id, status="RUNNING")
            return
        experiment = self.client.get_experiment_by_name(about.project)
        number = experiment.experiment_id if experiment else self.client.create_experiment(about.project)
        run = self.client.create_run(number, run_name=about.name, tags={"stagecraft.run_dir": about.run_dir})
        self.id = run.info.run_id
        parameters = [
            Param(name, str(value)[:LONGEST_PARAMETER]) for name, value in scalars(about.config).items()
        ]
        for at in range(0, len(parameters), MOST_PARAMETERS):
            self.client.log_batch(self.id, params=parameters[at : at + MOST_PARAMETERS])
        self.client.log_text(self.id, json.dumps(about.config, indent=2), "config.json")
        self.client.log_text(self.id, json.dumps(about.plan, indent=2), "plan.json")

    def send(self, points: Sequence[Point]) -> None:
        metrics = [
            self.metric(figure.flat, figure.number, int(point.time * 1e3), point.step)
            for point in points
            for figure in point.figures
        ]
        for at in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(self.id, metrics=metrics[at : at + MOST_METRICS])

    def send_report(self, report: Report) -> None:
        self.client.log_artifact(self.id, report.html)
        self.client.log_text(self.id, report.text, "report.txt")

    def close(self, end: End | None) -> None:
        if end is None:
            return
        self.client.set_tag(self.id, "stagecraft.end", str(end))
        self.client.set_terminated(self.id, STATUS[end.word])
