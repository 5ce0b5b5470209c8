"""What a plan was priced with: costs of its stages, and the network between ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from .cluster import Level
from .typed import KEY


@dataclass(frozen=True, kw_only=True)
class StageSpread:
    """How much a stage's times vary: interquartile ranges in ms."""

    forward_ms: float = 0.0
    backward_input_ms: float = 0.0
    backward_weight_ms: float = 0.0
    step_ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """One stage on one rank, for one full micro-batch. Times in ms, sizes in bytes."""

    forward_ms: float
    backward_input_ms: float
    backward_weight_ms: float
    step_ms: float = 0.0  # optimizer update
    parameter_bytes: int = 0
    compute_copy_bytes: int = 0
    buffer_bytes: int = 0
    optimizer_bytes: int = 0
    input_bytes: int = 0  # boundary received from the previous stage
    read_bytes: int = 0
    output_bytes: int = 0  # boundary sent to the next stage
    targets_bytes: int = 0
    field_bytes: int = 0
    kept_for_input_bytes: int = 0  # kept from forward to the input gradient
    kept_for_weight_bytes: int = 0  # kept from the input gradient to the weight gradient
    output_kept: bool = False
    forward_peak_bytes: int = 0
    unkept_forward_peak_bytes: int | None = None
    backward_peak_bytes: int = 0
    backward_input_peak_bytes: int | None = None
    backward_weight_peak_bytes: int | None = None
    step_peak_bytes: int | None = None
    spread: StageSpread | None = None

    @property
    def backward_ms(self) -> float:
        """Both halves."""
        return self.backward_input_ms + self.backward_weight_ms


@dataclass(frozen=True, kw_only=True)
class SkipCosts:
    """What goes directly between stages that are no neighbours, and its gradient back."""

    from_stage: int = field(metadata={KEY: "from"})
    to_stage: int = field(metadata={KEY: "to"})
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Network:
    """Innermost level first."""

    levels: tuple[Level, ...]


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """All that `check` and `simulate` need to know of a model and a cluster."""

    stages: tuple[StageCosts, ...]
    network: Network
    speed: tuple[float, ...] = ()  # relative speed per rank; empty: all 1
    loss_bytes: int = 16
    tie_bytes: tuple[int, ...] = ()
    skips: tuple[SkipCosts, ...] = ()
