"""That a program is safe, or what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .program import Program
from .result import Result
from .tables import Table, bytes_text, layout_text
from .typed import KEY


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong; `cycle` has the actions that wait for each other, of a deadlock."""

    kind: str
    message: str
    cycle: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LeastSlots:
    """Of all channels together."""

    total: int
    exact: bool


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Receive slots of one rank for one payload between two stages."""

    rank: int
    payload: str
    from_stage: int = field(metadata={KEY: "from"})
    to_stage: int = field(metadata={KEY: "to"})
    transfers: int
    slots: int
    least: int


@dataclass(frozen=True, kw_only=True)
class DeviceWaits:
    """Under NCCL's rules: where a host may wait for its whole device."""

    safe: bool
    places: int
    receives: int
    sends: int
    sums: int


@dataclass(frozen=True, kw_only=True)
class StageProof:
    """What is proved of a stage on a rank."""

    rank: int
    stage: int
    in_flight: int  # micro-batches whose backward is to come
    versions: int  # of the weights alive at once
    staleness_min: int  # in updates
    staleness_max: int
    rank_slots: int


@dataclass(frozen=True, kw_only=True)
class MemoryProof:
    """The peak of a rank, in requested tensor bytes, and what it consists of."""

    rank: int
    peak_bytes: int
    at: str  # the action at which it is reached
    weights_bytes: int
    older_versions_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    kept_bytes: int
    transfers_bytes: int
    transient_bytes: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Proof(Result):
    """What check() has to say of a program: where `accepted`, what is proved, and otherwise `findings`."""

    _kind: ClassVar[str] = "proof"
    file: str
    schedule: str
    stages: int
    ranks: int
    group_sizes: tuple[int, ...]
    transport: str  # whose rules it was judged under
    accepted: bool
    least_slots_per_channel: int | None = None  # None: no number works
    findings: tuple[Finding, ...] = ()
    steps_follow: bool = False  # a rank that has ended a step begins the next
    slots_per_channel: int | None = None
    slots: int | None = None
    least_slots: LeastSlots | None = None
    channels: tuple[Channel, ...] = ()
    device_waits: DeviceWaits | None = None
    proof: tuple[StageProof, ...] = ()
    memory: tuple[MemoryProof, ...] = ()  # one per rank; empty where there are no costs
    repaired: tuple[str, ...] = ()  # what was changed

    def __bool__(self) -> bool:
        return self.accepted

    def __repr__(self) -> str:
        word = "accepted" if self.accepted else "refused"
        return f"<Proof {word}: {self.schedule}, {layout_text(self.stages, self.ranks)}, {self.transport}>"

    def _repr_html_(self) -> str:
        caption = repr(self)[1:-1].removeprefix("Proof ")
        if not self.accepted:
            rows = [[finding.kind, finding.message] for finding in self.findings]
            return Table(caption, ["<what", "<where"], rows).html()
        peaks = {rank.rank: rank for rank in self.memory}
        rows = [
            [
                str(stage.rank),
                str(stage.stage),
                str(stage.in_flight),
                str(stage.versions),
                str(stage.staleness_max)
                if stage.staleness_min == stage.staleness_max
                else f"{stage.staleness_min} to {stage.staleness_max}",
                bytes_text(peaks[stage.rank].peak_bytes) if stage.rank in peaks else "",
            ]
            for stage in self.proof
        ]
        columns = ["rank", "stage", "in flight", "versions", "staleness", "peak memory"]
        return Table(caption, columns, rows).html()


@dataclass(frozen=True)
class Repaired:
    """A schedule with its loads put right and doubles merged. The order of computation stays."""

    program: Program
    changes: tuple[str, ...]
    proof: Proof
