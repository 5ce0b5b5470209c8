"""OpenTelemetry: metrics over HTTP to the collector that --at names, or OTEL_EXPORTER_OTLP_ENDPOINT. Each
step is a data point with its own time."""

import time
from collections.abc import Sequence
from typing import Any

from stagecraft_tools.refusal import Refused

from .figures import Point
from .run_directory import End
from .target import About, Target

UNITS = {"_ms": "ms", "_bytes": "By", "_per_second": "1/s"}


class Otlp(Target):
    modules = "opentelemetry-exporter-otlp-proto-http"
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")

    def __init__(self, about: About) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self.export = export
        if about.at and not about.at.startswith(("http://", "https://")):
            raise Refused(f"--at {about.at}: expected the collector's address, as in http://127.0.0.1:4318")
        endpoint = f"{about.at.rstrip('/')}/v1/metrics" if about.at else None
        self.exporter = OTLPMetricExporter(endpoint=endpoint)
        self.resource = Resource.create(
            {"service.name": about.project, "stagecraft.run": about.name, "stagecraft.run_dir": about.run_dir}
        )
        self.scope = InstrumentationScope("stagecraft")

    def send(self, points: Sequence[Point]) -> None:
        found: dict[str, list[Any]] = {}
        for point in points:
            # Beside the others: as an attribute, it would make a series of each point.
            self.add(found, "step", point.step, point.time, {})
            for figure in point.figures:
                name = f"{figure.group}.{figure.name}"
                labels: dict[str, int | str] = dict(figure.labels)
                if figure.term:
                    name, labels["term"] = f"{name}_term", figure.term
                self.add(found, name, figure.number, point.time, labels)
        self.post(found)

    def add(
        self, found: dict[str, list[Any]], name: str, number: float, at: float, labels: dict[str, int | str]
    ) -> None:
        found.setdefault(f"stagecraft.{name}", []).append(
            self.export.NumberDataPoint(
                attributes=labels, start_time_unix_nano=0, time_unix_nano=int(at * 1e9), value=number
            )
        )

    def post(self, found: dict[str, list[Any]]) -> None:
        metrics = [
            self.export.Metric(name, "", unit_of(name), self.export.Gauge(points))
            for name, points in found.items()
        ]
        scope = self.export.ScopeMetrics(self.scope, metrics, "")
        resource = self.export.ResourceMetrics(self.resource, [scope], "")
        result = self.exporter.export(self.export.MetricsData([resource]))
        if result is not self.export.MetricExportResult.SUCCESS:
            raise ConnectionError("the collector did not take the figures")

    def close(self, end: End | None) -> None:
        if end is not None:
            found: dict[str, list[Any]] = {}
            self.add(found, "exit_code", end.code, time.time(), {})
            self.post(found)
        self.exporter.shutdown()


def unit_of(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "1")
