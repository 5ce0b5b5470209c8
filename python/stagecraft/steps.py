"""What became of a batch."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._engine import StepUnderWay


@dataclass(frozen=True)
class RankTime:
    """Where a rank's time went in a step, in seconds. Together they are the step as this rank saw it."""

    rank: int
    compute: float  # forwards, backwards, updates
    wait: float  # for other stages
    collective: float  # sums over replicas and the gradient's norm
    other: float  # loading, bookkeeping


@dataclass(frozen=True)
class Step:
    """What became of a batch: of a step, or of an evaluation, which has no norm, no rate and no ranks.

    A step may still be under way. The first of its fields that is read waits for all ranks to be through it,
    and throws what went wrong in it. Every process of a run gets the same, and any thread may ask."""

    step: int  # of the whole training, from 0
    loss: float  # of the whole batch, each sample (or label that counts) weighing alike
    norm: float | None  # of the whole gradient, before clipping
    learning_rate: float | None  # of this step; None for an evaluation
    seconds: float  # until all ranks were through it, from its call or from the end of the step before
    samples: int
    tokens: int  # samples times their length; 0 where the input is not tokens
    skipped: bool  # the gradient was not finite, and the weights are as before
    loss_scale: float | None  # of fp16
    ranks: tuple[RankTime, ...]
    terms: Mapping[str, float] = field(default_factory=dict)  # of the loss, weighted as it is; by name

    @property
    def is_over(self) -> bool:
        """Whether all ranks are through it: then nothing waits."""
        under_way: StepUnderWay | None = self.__dict__.get("_under_way")
        return under_way is None or under_way.over()


NAMES = frozenset(each.name for each in fields(Step))


class _Begun(Step):
    """A step whose fields come when they are read."""

    def __init__(self, under_way: StepUnderWay) -> None:
        self.__dict__["_under_way"] = under_way

    def __getattr__(self, name: str) -> Any:
        """Of a field that has not come yet."""
        if name not in NAMES:
            raise AttributeError(f"a step has no {name}; it has {', '.join(sorted(NAMES))}")
        self.__dict__.update(vars(step_of(self.__dict__["_under_way"].result())))
        return self.__dict__[name]

    __hash__ = Step.__hash__

    def __eq__(self, other: object) -> bool:
        return _as_read(self) == (_as_read(other) if isinstance(other, Step) else other)

    def __repr__(self) -> str:
        return (
            repr(_as_read(self))
            if self.is_over
            else ("<a stagecraft.Step that is under way: .loss and its other fields wait for it>")
        )


def begun(under_way: StepUnderWay) -> Step:
    return _Begun(under_way)


def went_well(step: Step) -> bool:
    """Of one that is over."""
    under_way: StepUnderWay | None = step.__dict__.get("_under_way")
    return under_way is None or not under_way.failed()


def step_of(made: Mapping[str, Any]) -> Step:
    return Step(**{**made, "ranks": tuple(RankTime(*rank) for rank in made["ranks"])})


def _as_read(step: Step) -> Step:
    return Step(**{name: getattr(step, name) for name in NAMES})


def _reduced(step: _Begun) -> Any:
    """For pickle and copy: as it is when it was read."""
    return Step, tuple(getattr(step, each.name) for each in fields(Step))


copyreg.pickle(_Begun, _reduced)
