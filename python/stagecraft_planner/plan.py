"""Which layers make which stage on which ranks, under which schedule, and what was predicted: plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from . import json_text, typed
from .binary import Call
from .costs import CostTable
from .document import Document
from .errors import StagecraftError
from .program import Program, Skip
from .tables import Table, bytes_text, layout_text, ms_text, share_text
from .typed import KEY

Recompute = Literal["none", "all", "all_but_last"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A contiguous run of layers."""

    first_layer: int
    last_layer: int  # one past the last
    ranks: tuple[int, ...]  # the replicas
    recompute: Recompute = "none"
    loads: bool = False  # its layers read fields of the batch

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.last_layer)


@dataclass(frozen=True, kw_only=True)
class ScheduleChoice:
    """A schedule with its settings."""

    name: str
    vertical_sync: bool = False
    agree_norm: bool = False
    warmup_extra: int = 0


@dataclass(frozen=True, kw_only=True)
class PlannedOrders:
    """What each rank computes in a step, where a search found an order: `F0 F1 B0 B1` per rank."""

    micro_batches: int
    ranks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the simulator says of a step."""

    step_ms: float  # from one optimizer step to the next, once steady
    step_ideal_ms: float = 0.0  # the same with free communication
    bubble: float = 0.0  # idle share of the mean rank
    bottleneck_ms: float = 0.0  # busiest rank, one micro-batch
    memory_bytes: tuple[int, ...] = ()  # proved peak per rank


@dataclass(frozen=True, kw_only=True)
class StepProof:
    """How far the plan may be from the best one."""

    bound_ms: float  # no plan's step is shorter
    gap: float  # of the plan's step above it, as a share
    optimal: bool
    whole_family: bool  # False: of equally wide stages
    layouts: int
    simulated: int
    without_cap_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class OrderSearch:
    """What a search for an order has found, under the schedule "auto"."""

    from_schedule: str = field(metadata={KEY: "from"})
    orders: int
    gap: float
    optimal: bool


@dataclass(frozen=True, kw_only=True)
class Jittered:
    """Of a step whose times vary: median and 95th percentile in ms."""

    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, kw_only=True)
class RunnerUp:
    """The best plan of another number of stages, or of another placement."""

    stages: int
    cuts: tuple[int, ...]
    bound_by: str
    placement: str
    search: OrderSearch | None = None
    jitter: Jittered | None = None
    predicted: Prediction


@dataclass(frozen=True, kw_only=True)
class Search:
    """How a plan was found, and what was beside it."""

    bound_by: str
    placement: str
    agreement_ms: float | None = None  # of the step, because all ranks agree on the gradient's norm
    search: OrderSearch | None = None
    jitter: Jittered | None = None
    proof: StepProof | None = None
    others: tuple[RunnerUp, ...] = ()
    infeasible: tuple[str, ...] = ()  # what does not fit, and why
    not_found: tuple[str, ...] = ()  # in what nothing was found that fits


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Document):
    """Stages, schedule and prediction. Layers are numbered as in the model. Times in ms, sizes in bytes.

    plan() makes one, load() reads one. `search` is there behind plan() alone, and not part of the file.
    """

    _kind: ClassVar[str] = "plan"
    _search: ClassVar[Search | None] = None
    _tables: ClassVar[str | None] = None  # the command's own
    _asked: ClassVar[Call | None] = None

    model: str = ""
    model_fingerprint: str = ""
    dtype: str = "float32"
    stages: tuple[Stage, ...]
    ties: tuple[tuple[int, ...], ...] = ()  # of each tied weight, the stages of the layers that hold it
    skips: tuple[Skip, ...] = ()
    gradient_from: int = 0  # the first stage with a trained weight
    schedule: ScheduleChoice
    program: PlannedOrders | None = None
    micro_batches: int  # per step
    micro_batch_size: int  # samples
    costs: CostTable | None = None
    threads: int | None = None
    capacity_bytes: int | None = None  # usable memory per device
    predicted: Prediction | None = None

    @property
    def search(self) -> Search | None:
        """How it was found; None of a plan that was loaded, or made otherwise."""
        return self._search

    @property
    def cuts(self) -> tuple[int, ...]:
        """The first layers of stages 1, 2, ..."""
        return tuple(stage.first_layer for stage in self.stages[1:])

    @property
    def widths(self) -> tuple[int, ...]:
        """Replicas of each stage."""
        return tuple(len(stage.ranks) for stage in self.stages)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return 1 + max(rank for stage in self.stages for rank in stage.ranks)

    @property
    def samples_per_step(self) -> int:
        return self.micro_batches * self.micro_batch_size

    @property
    def step_ms(self) -> float | None:
        """Predicted time from one step to the next; None where nothing was predicted."""
        return self.predicted.step_ms if self.predicted else None

    @property
    def samples_per_second(self) -> float | None:
        """Predicted; None where nothing was."""
        return self.samples_per_step / self.predicted.step_ms * 1e3 if self.step_ms else None  # type: ignore[union-attr]

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        """Proved peak per rank; empty where nothing was predicted."""
        return self.predicted.memory_bytes if self.predicted else ()

    def to_program(self) -> Program:
        """What each rank computes in a step, in order."""
        return Program._of_text(self._call("convert", "--to=json").run().stdout, self._label)

    def svg(self) -> str:
        """A picture of a step, from the plan's costs."""
        return self._call("simulate", "--no-text").run("--svg={out.svg}").written["out.svg"]

    def __repr__(self) -> str:
        step = f", {self.step_ms:.2f} ms per step" if self.step_ms is not None else ""
        layout = layout_text(len(self.stages), self.ranks)
        return (
            f"<Plan {self.model or 'of a model'}: {self.schedule.name}, {layout},"
            f" {self.micro_batches} micro-batches of {self.micro_batch_size}{step}>"
        )

    def __str__(self) -> str:
        """Behind plan() the command's own tables, of another plan what `stagecraft check` says of it."""
        if self._tables is not None:
            return self._tables
        try:
            return self._call("check").run().stdout
        except StagecraftError as error:
            return f"{error}\n"

    def _repr_html_(self) -> str:
        return self._table().html()

    def _call(self, verb: str, *options: str) -> Call:
        return Call(
            verb, ("{plan.json}", *options), {"plan.json": self.to_json()}, {"plan.json": self._label}
        )

    def _table(self) -> Table:
        predicted, costs = self.predicted, self.costs
        columns = ["stage", "layers", "ranks", "F ms", "B ms", "parameters", "memory", "<recompute"]
        rows = []
        for at, stage in enumerate(self.stages):
            cost = costs.stages[at] if costs else None
            memory = (
                [predicted.memory_bytes[rank] for rank in stage.ranks]
                if self.memory_bytes and predicted
                else []
            )
            rows.append(
                [
                    str(at),
                    _run_text(stage.layers),
                    _run_text(stage.ranks),
                    ms_text(cost.forward_ms) if cost else "",
                    ms_text(cost.backward_ms) if cost else "",
                    bytes_text(cost.parameter_bytes) if cost else "",
                    bytes_text(max(memory)) if memory else "",
                    stage.recompute,
                ]
            )
        return Table(repr(self)[1:-1].removeprefix("Plan "), columns, rows, self._note())

    def _note(self) -> str:
        parts = []
        if self.predicted:
            parts.append(f"{self.samples_per_second or 0:,.1f} samples/s")
            parts.append(f"bubble {share_text(self.predicted.bubble)}")
        if self._search:
            parts.append(f"bound by {self._search.bound_by}")
            proof = self._search.proof
            if proof:
                far = "no plan's step is shorter"
                parts.append(
                    far if proof.optimal else f"at most {share_text(proof.gap)} above the lower bound"
                )
        if self.capacity_bytes is not None:
            parts.append(f"{bytes_text(self.capacity_bytes)} per device")
        return "; ".join(parts)

    @classmethod
    def _planned(
        cls,
        document: Mapping[str, Any],
        *,
        text: str | None = None,
        tables: str | None = None,
        asked: Call | None = None,
    ) -> Plan:
        """From what the verb printed with --json."""
        plan = cls._of_text(text if text is not None else json_text.dump(document["plan"]), "plan.json")
        found = {key: value for key, value in document.items() if key in _SEARCH_KEYS}
        if "bound_by" in found and "placement" in found:
            object.__setattr__(plan, "_search", typed.read(Search, found, "plan"))
        object.__setattr__(plan, "_tables", tables)
        object.__setattr__(plan, "_asked", asked)
        return plan


def _run_text(numbers: range | tuple[int, ...]) -> str:
    """ "3", "0-3" or "0, 2"."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 1 and list(numbers) == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ", ".join(map(str, numbers))


_SEARCH_KEYS = {field.key for field in typed.fields_of(Search)}
