"""Plans and schedules side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from . import typed
from .errors import InputError
from .plan import Plan
from .result import Result
from .tables import Table, bytes_text, layout_text, ms_text, plural, share_text

C = TypeVar("C", bound="Comparison")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A plan beside others."""

    schedule: str
    stages: int
    ranks: int
    micro_batches: int
    micro_batch_size: int
    recompute: str
    step_ms: float
    samples_per_second: float
    bubble: float
    memory_bytes: int  # of the rank that needs most
    bound_by: str
    plan: Plan
    p50_ms: float | None = None  # under jitter
    p95_ms: float | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Result):
    """Plans of several schedules and micro-batch sizes, the fastest first, or those that no other beats in
    both step time and memory."""

    _kind: ClassVar[str] = "comparison"
    _svg: ClassVar[str | None] = None
    plan: Plan  # the best one
    choices: tuple[Choice, ...]
    refused: tuple[str, ...] = ()  # what was left out, and why
    cap_step: float | None = None  # the largest step between two caps on memory, as a share

    def __getitem__(self, schedule: str) -> Choice:
        """The first choice of a schedule."""
        for choice in self.choices:
            if choice.schedule == schedule:
                return choice
        raise KeyError(schedule)

    def svg(self) -> str:
        """A picture: step time against memory, of all plans that were made."""
        return self._svg if self._svg is not None else self._written("--svg", "out.svg")

    def __repr__(self) -> str:
        return f"<Comparison of {plural(len(self.choices), 'plan')}: the best is {self.plan!r}>"

    def _repr_html_(self) -> str:
        best = self.plan.to_json()
        jitter = any(choice.p95_ms is not None for choice in self.choices)
        columns = ["<", "<schedule", "stages", "ranks", "micro-batches", "<recompute", "step ms"]
        columns += ["p50 ms", "p95 ms"] if jitter else []
        columns += ["samples/s", "bubble", "most memory", "<bound by"]
        rows = []
        for choice in self.choices:
            times = [ms_text(ms) if ms is not None else "-" for ms in (choice.p50_ms, choice.p95_ms)]
            rows.append(
                [
                    "*" if choice.plan.to_json() == best else "",
                    choice.schedule,
                    str(choice.stages),
                    str(choice.ranks),
                    f"{choice.micro_batches} of {choice.micro_batch_size}",
                    choice.recompute,
                    ms_text(choice.step_ms),
                    *(times if jitter else []),
                    f"{choice.samples_per_second:,.1f}",
                    share_text(choice.bubble),
                    bytes_text(choice.memory_bytes),
                    choice.bound_by,
                ]
            )
        return Table(f"{plural(len(rows), 'plan')}", columns, rows, "; ".join(self.refused)).html()

    @classmethod
    def _of_value(cls: type[C], value: Any, name: str) -> C:
        if not isinstance(value, dict) or not isinstance(value.get("plan"), dict):
            raise InputError(f"{name}: expected what `stagecraft compare --json` prints, with a plan")
        plan = Plan._planned(value)
        if "choices" not in value:  # one schedule and one size: what plan prints
            return cls(plan=plan, choices=(_only(plan),))
        choices = tuple(
            typed.read(Choice, {**choice, "plan": Plan._planned(choice)}, name, f"/choices/{at}")
            for at, choice in enumerate(value["choices"])
        )
        rest = {key: item for key, item in value.items() if key not in ("plan", "choices")}
        return typed.read(cls, {"plan": plan, "choices": choices, **rest}, name)


def _only(plan: Plan) -> Choice:
    predicted = plan.predicted
    if predicted is None:
        raise InputError("plan: has no prediction")
    recompute = [stage.recompute for stage in plan.stages]
    return Choice(
        schedule=plan.schedule.name,
        stages=len(plan.stages),
        ranks=plan.ranks,
        micro_batches=plan.micro_batches,
        micro_batch_size=plan.micro_batch_size,
        recompute=recompute[0] if len(set(recompute)) == 1 else " ".join(recompute),
        step_ms=predicted.step_ms,
        samples_per_second=plan.samples_per_second or 0.0,
        bubble=predicted.bubble,
        memory_bytes=max(predicted.memory_bytes),
        bound_by=plan.search.bound_by if plan.search else "",
        plan=plan,
    )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A plan's stages under one schedule. Nothing but `refused` is there where it cannot take the plan."""

    schedule: str
    refused: str | None = None
    time_ms: float | None = None  # of a step, or of the steps asked for
    steady: bool | None = None  # `time_ms` is what one more step adds to a full pipeline
    of_best: float | None = None
    bubble: float | None = None
    peak_bytes: int | None = None
    peak_rank: int | None = None
    fits: bool | None = None
    messages: int | None = None  # per step
    sent_bytes: int | None = None  # per step
    versions: int | None = None  # of a stage's weights alive at once


@dataclass(frozen=True, kw_only=True, repr=False)
class ScheduleComparison(Result):
    """A plan's stages under several schedules."""

    _kind: ClassVar[str] = "comparison"
    file: str
    stages: int
    ranks: int
    micro_batches: int
    steps: int
    schedules: tuple[Compared, ...]
    capacity_bytes: int | None = None

    def __getitem__(self, schedule: str) -> Compared:
        for compared in self.schedules:
            if compared.schedule == schedule:
                return compared
        raise KeyError(schedule)

    def svg(self) -> str:
        """A picture: each schedule's timeline."""
        return self._written("--svg", "out.svg")

    def __repr__(self) -> str:
        names = [compared.schedule for compared in self.schedules if compared.refused is None]
        return f"<ScheduleComparison of {self.file}: {', '.join(names)}>"

    def _repr_html_(self) -> str:
        columns = ["<schedule", "step ms", "of best", "bubble", "peak memory", "versions", "<fits", "<"]
        rows = []
        for compared in self.schedules:
            if compared.refused is not None:
                rows.append([compared.schedule, *[""] * 6, compared.refused])
                continue
            rows.append(
                [
                    compared.schedule + (" *" if compared.steady else ""),
                    ms_text(compared.time_ms or 0),
                    f"{compared.of_best:.3f}" if compared.of_best is not None else "-",
                    share_text(compared.bubble or 0),
                    bytes_text(compared.peak_bytes or 0),
                    str(compared.versions),
                    "yes" if compared.fits else "no",
                    "",
                ]
            )
        caption = f"{self.file}: {layout_text(self.stages, self.ranks)}, {self.micro_batches} micro-batches"
        note = "* no flush between steps" if any(compared.steady for compared in self.schedules) else ""
        return Table(caption, columns, rows, note).html()
