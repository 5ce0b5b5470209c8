"""What is sent: figures of one moment of a run, under names that all targets share.

    train/loss, train/gradient_norm, ...     of each step
    train/loss/ce, ...                       terms of the loss, by name
    time/step_ms, time/step_predicted_ms     beside the plan's prediction
    validation/loss, validation/loss/ce, ... of each validation
    stage_0_rank_0/forward_ms, ...           of the report: where a rank's time went, and what was predicted
    rank_0/memory_measured_bytes, ...        of the report

Names end in their unit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

NO_NUMBER = float("nan")


@dataclass(frozen=True)
class Figure:
    group: str  # "train", "validation", "time", "stage", "memory", "bubble"
    name: str
    number: float
    labels: Mapping[str, int] = field(default_factory=dict)  # the stage and the rank it is of
    term: str = ""  # of the loss, by its name; a part of the name for targets that have no labels of texts

    @property
    def flat(self) -> str:
        """For targets whose figures have names alone."""
        if self.term:
            return f"{self.group}/{self.name}/{self.term}"
        if not self.labels:
            return f"{self.group}/{self.name}"
        of = "_".join(f"{key}_{value}" for key, value in self.labels.items())
        return f"{of}/{self.name if self.group == 'stage' else f'{self.group}_{self.name}'}"


@dataclass(frozen=True)
class Point:
    """Figures of one moment."""

    step: int  # optimizer steps made
    time: float  # seconds since 1970
    figures: tuple[Figure, ...]


def named(group: str, values: Mapping[str, Any], labels: Mapping[str, int] | None = None) -> Iterator[Figure]:
    """Those that are there."""
    for name, value in values.items():
        if value is not None:
            yield Figure(group, name, float(value), labels or {})


def terms_of(group: str, terms: Mapping[str, float | None]) -> Iterator[Figure]:
    """Of a loss; one that is null was not finite."""
    for name, value in terms.items():
        yield Figure(group, "loss", NO_NUMBER if value is None else float(value), term=name)


def point_of_line(line: Mapping[str, Any], time: float, predicted_ms: float | None) -> Point:
    """Of a line of metrics.jsonl. A loss that is null was not finite; of a validation in which no target
    counts there is none."""
    loss = line["loss"] if line["loss"] is not None else None if line.get("no_targets") else NO_NUMBER
    if line.get("validation"):
        values = {"loss": loss, "accuracy": line.get("accuracy"), "ms": line["ms"]}
        terms = terms_of("validation", {} if line.get("no_targets") else line.get("terms") or {})
        return Point(line["step"], time, (*named("validation", values), *terms))
    train = {
        "loss": loss,
        **{key: line.get(key) for key in ("gradient_norm", "learning_rate", "loss_scale")},
        "skipped": 1 if line.get("skipped") else None,
    }
    times = {
        "step_ms": line["ms"],
        "step_predicted_ms": predicted_ms,
        **{key: line.get(key) for key in ("samples_per_second", "tokens_per_second")},
    }
    terms = terms_of("train", line.get("terms") or {})
    return Point(line["step"], time, (*named("train", train), *terms, *named("time", times)))


def measured_and_predicted(of: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """`{"forward": {"measured_ms": 1, "predicted_ms": 2}, "receive_ms": 3}`: each as a name of its own."""
    values: dict[str, Any] = {}
    for key, value in of.items():
        if isinstance(value, Mapping):
            values[f"{key}_{unit}"] = value.get(f"measured_{unit}")
            values[f"{key}_predicted_{unit}"] = value.get(f"predicted_{unit}")
        elif key.endswith(f"_{unit}"):
            values[key] = value
    return values


def point_of_report(report: Mapping[str, Any], time: float) -> Point:
    """Of `stagecraft report --json`: what a run as a whole came to."""
    step = {"step_median_ms": report["step"].get("measured_ms"), "step_p99_ms": report.get("step_p99_ms")}
    figures = [
        *named("time", step),
        *named(
            "bubble",
            {
                "measured": report.get("bubble"),
                "predicted": report.get("bubble_predicted"),
                "bound": report.get("bubble_bound"),
            },
        ),
    ]
    for row in report["stage_times"]:
        labels = {"stage": row["stage"], "rank": row["rank"]}
        figures += named("stage", measured_and_predicted(row, "ms"), labels)
    for row in report["memory"]:
        sizes = {name: row.get(name) for name in ("measured_bytes", "proved_bytes")}
        figures += named("memory", sizes, {"rank": row["rank"]})
    return Point(report["steps"], time, tuple(figures))
