"""Prometheus: a page of the newest figures, for its server to read. http://127.0.0.1:9400/metrics unless --at
says HOST:PORT. It shows one moment: steps between two visits are not seen, and the report has no place
there."""

import os
import re
import time
from collections.abc import Sequence

from stagecraft_tools.refusal import Refused

from .figures import Point
from .run_directory import End
from .target import About, Target

VARIABLE = "STAGECRAFT_FOLLOW_LINGER"
LINGER = 60  # seconds for which the last figures can be read, unless the variable says another number


class Prometheus(Target):
    modules = "prometheus-client"
    default_at = "127.0.0.1:9400"
    has_project = False
    keeps = False

    def __init__(self, about: About) -> None:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        self.gauge, self.registry, self.run = Gauge, CollectorRegistry(), about.name
        self.gauges: dict[str, Gauge] = {}
        host, _, port = about.at.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise Refused(f"--at {about.at}: expected HOST:PORT, as in {self.default_at}")
        self.server, self.thread = start_http_server(int(port), host.strip("[]"), self.registry)
        self.set("running", 1, {})

    def set(self, name: str, number: float, labels: dict[str, str]) -> None:
        if name not in self.gauges:
            said = name.replace("_", " ")
            self.gauges[name] = self.gauge(
                f"stagecraft_{name}", f"{said}, of a run", ["run", *labels], registry=self.registry
            )
        self.gauges[name].labels(run=self.run, **labels).set(number)

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            self.set("step", point.step, {})
            for figure in point.figures:
                name, number = in_base_units(f"{figure.group}_{figure.name}", figure.number)
                labels = {key: str(value) for key, value in figure.labels.items()}
                if figure.term:  # all figures of a name have the same labels
                    name, labels = f"{name}_term", {**labels, "term": figure.term}
                self.set(name, number, labels)

    def close(self, end: End | None) -> None:
        if end is not None:
            self.set("running", 0, {})
            self.set("exit_code", end.code, {})
            time.sleep(float(os.environ.get(VARIABLE, LINGER)))
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def in_base_units(name: str, number: float) -> tuple[str, float]:
    """Prometheus counts in seconds, and calls shares ratios."""
    if name.endswith("_ms"):
        return f"{name.removesuffix('_ms')}_seconds", number / 1e3
    return re.sub("^(bubble_.*|validation_accuracy)$", r"\1_ratio", name), number
