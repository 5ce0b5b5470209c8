"""What a step takes, and where its time goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from .result import Result
from .tables import Table, layout_text, ms_text, plural, share_text


@dataclass(frozen=True, kw_only=True)
class FreeLinks:
    """The same if transfers took no time."""

    makespan_ms: float
    bubble: float


@dataclass(frozen=True, kw_only=True)
class MakespanJitter:
    """Of simulations with times that vary."""

    samples: int
    makespan_p50_ms: float
    makespan_p95_ms: float


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """The sum of a stage's gradients over its replicas."""

    stage: int
    ranks: int
    ring_ms: float
    by_level_ms: float | None
    used: Literal["ring", "by_level"]


@dataclass(frozen=True, kw_only=True)
class TieSum:
    """The sum of a tied weight's gradients over the layers that hold it."""

    tie: int
    ranks: int
    bytes: int
    ms: float


@dataclass(frozen=True, kw_only=True)
class LostTime:
    """Why a rank is idle."""

    imbalance_ms: float
    dependency_ms: float
    exposed_transfer_ms: float
    blocked_send_ms: float
    memory_ms: float
    barrier_ms: float

    @property
    def idle_ms(self) -> float:
        """All of it."""
        return (
            self.imbalance_ms
            + self.dependency_ms
            + self.exposed_transfer_ms
            + self.blocked_send_ms
            + self.memory_ms
            + self.barrier_ms
        )


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """What a rank does, all steps together."""

    rank: int
    stages: tuple[int, ...]
    forward_ms: float
    backward_ms: float
    step_ms: float
    wait_activation_ms: float
    wait_gradient_ms: float
    wait_send_ms: float
    wait_other_ms: float
    idle_at_end_ms: float
    lost: LostTime
    busy: float  # share of the makespan


@dataclass(frozen=True, kw_only=True, repr=False)
class Simulation(Result):
    """One step, or several: times in ms, shares between 0 and 1."""

    _kind: ClassVar[str] = "simulation"
    file: str
    schedule: str
    stages: int
    ranks: int
    micro_batches: int
    steps: int
    makespan_ms: float  # of all steps
    bubble: float  # idle share of the mean rank
    free_links: FreeLinks
    steady_step_ms: float | None = None  # what one more step adds
    jitter: MakespanJitter | None = None
    reductions: tuple[Reduction, ...] = ()
    ties: tuple[TieSum, ...] = ()
    rank_times: tuple[RankTimes, ...]

    def svg(self) -> str:
        """A picture of the ranks' timelines."""
        return self._written("--svg", "out.svg")

    def trace(self) -> str:
        """A trace in Chrome's format: JSON that ui.perfetto.dev opens."""
        return self._written("--trace", "trace.json")

    def draw(self) -> str:
        """The picture, of letters, and the tables."""
        return self._ask().run("--text").stdout

    def __repr__(self) -> str:
        layout, steps = layout_text(self.stages, self.ranks), plural(self.steps, "step")
        return (
            f"<Simulation {self.schedule}: {layout}, {steps} in {self.makespan_ms:.2f} ms,"
            f" bubble {share_text(self.bubble)}>"
        )

    def _repr_svg_(self) -> str | None:
        return self.svg() if self._call is not None else None

    def _repr_html_(self) -> str | None:
        """Where there is a picture, it is the answer; a table otherwise."""
        return None if self._call is not None else self._table().html()

    def _table(self) -> Table:
        rows = [
            [
                str(rank.rank),
                ms_text(rank.forward_ms),
                ms_text(rank.backward_ms),
                ms_text(rank.step_ms),
                ms_text(rank.lost.idle_ms),
                share_text(rank.busy),
            ]
            for rank in self.rank_times
        ]
        columns = ["rank", "forward ms", "backward ms", "step ms", "idle ms", "busy"]
        return Table(repr(self)[1:-1].removeprefix("Simulation "), columns, rows)
