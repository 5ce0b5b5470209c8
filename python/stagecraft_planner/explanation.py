"""Why a plan is as it is, and what else would bring: what `stagecraft schema explanation` describes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from . import json_text
from .plan import Plan
from .result import Result
from .tables import Table, ms_text, share_text

E = TypeVar("E", bound="Explanation")


@dataclass(frozen=True, kw_only=True)
class ChainPart:
    """A part of the step's longest chain of things that wait for one another."""

    kind: Literal["compute", "optimizer", "link", "reduction", "agreement", "cards", "tied_weight"]
    stage: int | None = None
    level: int | None = None
    ms: float


@dataclass(frozen=True, kw_only=True)
class MemoryMiss:
    """What a rank lacks."""

    rank: int
    stages: tuple[int, ...]
    needs_bytes: int
    has_bytes: int


@dataclass(frozen=True, kw_only=True)
class MovedCut:
    """The plan with one cut elsewhere."""

    layer: int
    crossing_bytes: int
    step_ms: float
    change: float  # of the step, as a share of the plan's
    grown: ChainPart | None = None
    busiest: bool = False
    misses: MemoryMiss | None = None


@dataclass(frozen=True, kw_only=True)
class CutExplanation:
    """Why a cut is where it is."""

    layer: int
    stage: int
    crossing_bytes: int
    earlier: MovedCut | None = None
    later: MovedCut | None = None


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What the step would be with one thing a tenth faster."""

    stage: int | None = None
    level: int | None = None
    change: float


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """Where the mean rank's time goes in a step."""

    busy_ms: float
    imbalance_ms: float
    dependency_ms: float
    exposed_transfer_ms: float
    blocked_send_ms: float
    memory_ms: float
    barrier_ms: float


@dataclass(frozen=True, kw_only=True)
class LoneLayer:
    """A layer that no other is like."""

    layer: int
    compute_ms: float
    share: float
    parameter_bytes: int


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """One change, and the best plan with it."""

    change: Literal[
        "more_devices",
        "fewer_devices",
        "more_memory",
        "no_recompute",
        "chosen_recompute",
        "faster_links",
        "more_micro_batches",
        "fewer_micro_batches",
    ]
    level: int | None = None
    counts: tuple[int, ...]
    memory_bytes: int | None = None
    micro_batches: int
    micro_batch_size: int
    as_it_is_ms: float | None = None
    step_ms: float | None = None
    step_change: float
    plan: str  # in words; empty: the present one
    refused: str = ""

    def __str__(self) -> str:
        words = self.change.replace("_", " ")
        if self.change in ("more_micro_batches", "fewer_micro_batches"):
            return f"{self.micro_batches} micro-batches of {self.micro_batch_size}"
        if self.change in ("more_devices", "fewer_devices"):
            return f"{words}: {' x '.join(map(str, reversed(self.counts)))}"
        return words if self.level is None else f"{words}, level {self.level}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Result):
    """Of a plan's step. Times in ms; changes are shares of the step, negative where it becomes shorter."""

    _kind: ClassVar[str] = "explanation"
    _plan: ClassVar[Plan | None] = None
    step_ms: float
    agreement_ms: float | None = None
    lone_layers: tuple[LoneLayer, ...]
    cuts: tuple[CutExplanation, ...]
    cuts_left_out: int = 0
    chain: tuple[ChainPart, ...]
    rank: RankTime | None = None
    tenths: tuple[Sensitivity, ...]
    what_if: tuple[WhatIf, ...]

    @property
    def plan(self) -> Plan | None:
        """What is explained; None of an explanation that was loaded."""
        return self._plan

    def __repr__(self) -> str:
        return f"<Explanation of {self._plan!r}>" if self._plan else f"<Explanation of {self.step_ms:.2f} ms>"

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self._tables_of())

    def _tables_of(self) -> list[Table]:
        total = sum(part.ms for part in self.chain) or 1.0
        chain = [
            [
                part.kind.replace("_", " "),
                "" if part.stage is None else str(part.stage),
                ms_text(part.ms),
                share_text(part.ms / total),
            ]
            for part in self.chain
        ]
        cuts = [[str(cut.layer), str(cut.stage), _moved(cut.earlier), _moved(cut.later)] for cut in self.cuts]
        others = [
            [
                str(answer),
                ms_text(answer.step_ms) if answer.step_ms is not None else "-",
                f"{answer.step_change * 100:+.1f} %" if answer.step_ms is not None else "-",
                answer.refused.partition("\n")[0] or answer.plan or "this one",
            ]
            for answer in self.what_if
        ]
        tables = [
            Table("Where the step goes", ["<", "stage", "ms", "share"], chain),
            Table("What else would bring", ["<with", "step ms", "change", "<plan"], others),
        ]
        if cuts:
            columns = ["before layer", "stage begins", "a layer earlier", "a layer later"]
            tables.insert(0, Table("Why the cuts are where they are", columns, cuts))
        return tables

    @classmethod
    def _of_plan(cls: type[E], value: dict[str, Any], plan: Plan, tables: str) -> E:
        explanation = cls.from_json(json_text.dump(value))
        object.__setattr__(explanation, "_plan", plan)
        object.__setattr__(explanation, "_tables", tables)
        return explanation


def _moved(cut: MovedCut | None) -> str:
    if cut is None:
        return "-"
    return "does not fit" if cut.misses else f"{cut.change * 100:+.1f} %"
