"""Schedulers of torch.optim.lr_scheduler as functions of the step: their rates, read off a copy."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from .errors import InputError

# Steps that are looked at before the first one, where the whole training is longer or nobody says.
LOOK_AHEAD = 1000
REMEDY = "leave it out, and call the pipeline's set_lr(rate) when the rate is to change"


def is_scheduler(given: Any) -> bool:
    """Whether it is one of torch.optim.lr_scheduler, or one like them."""
    return hasattr(given, "optimizer") and callable(getattr(given, "step", None))


def rates_read(scheduler: Any, optimizer: Any, steps: int | None) -> Callable[[int], float]:
    """The rate of step 0, 1, 2, ... as a loop has it that calls `scheduler.step()` once behind each step.
    `optimizer`: what the pipeline steps with. The scheduler itself stays where it is.

    Throws InputError for one that does not go by the step alone, or that changes more than the rate."""
    kind = type(scheduler).__name__
    _refuse_other_arguments(scheduler)
    if hasattr(optimizer, "param_groups") and optimizer is not scheduler.optimizer:
        raise InputError(f"learning_rate: {kind} was made for another optimizer than optimizer=")
    rates = _Rates(kind, _small_copy(scheduler))
    try:
        for step in range(min(steps or LOOK_AHEAD, LOOK_AHEAD)):
            rates(step)
    except _OverError:
        if steps is not None:
            raise
    return rates


class _OverError(InputError):
    """Behind the last step that a scheduler has a rate for."""


class _Rates:
    def __init__(self, kind: str, scheduler: Any) -> None:
        self._kind, self._scheduler = kind, scheduler
        self._others = self._settings()
        self._made: list[float] = []

    def __call__(self, step: int) -> float:
        while len(self._made) <= step:
            if self._made:
                self._advance()
            self._made.append(self._rate())
        return self._made[step]

    def _advance(self) -> None:
        with warnings.catch_warnings():  # that its optimizer makes no steps
            warnings.simplefilter("ignore")
            try:
                self._scheduler.step()
            except ValueError as error:  # OneCycleLR behind its end
                raise _OverError(f"learning_rate: {self._kind}: {error}") from error

    def _rate(self) -> float:
        groups = self._scheduler.optimizer.param_groups
        rates = [float(group["lr"]) for group in groups]
        if len(set(rates)) > 1:
            raise InputError(
                f"learning_rate: {self._kind} gives groups of the optimizer rates of their own"
                f" ({rates[0]:g} and others): give one rate to all, or a function of the step, which each"
                " group scales by its own lr"
            )
        for before, now in zip(self._others, self._settings()):
            for name, value in now.items():
                if before.get(name) != value:
                    hint = " (cycle_momentum=False leaves it)" if name in ("momentum", "betas") else ""
                    raise InputError(
                        f"learning_rate: {self._kind} changes the optimizer's {name} too{hint}, and here a"
                        " scheduler sets the rate alone"
                    )
        return rates[0]

    def _settings(self) -> list[dict[str, Any]]:
        """All but the rate."""
        return [
            {name: copy.copy(group[name]) for name in group if name not in ("params", "lr", "initial_lr")}
            for group in self._scheduler.optimizer.param_groups
        ]


def _refuse_other_arguments(scheduler: Any) -> None:
    needed = [
        parameter.name
        for parameter in inspect.signature(scheduler.step).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if needed:
        raise InputError(
            f"learning_rate: {type(scheduler).__name__} goes by {', '.join(needed)} and not by the step"
            f" alone: {REMEDY}"
        )
    for part in getattr(scheduler, "_schedulers", ()):
        _refuse_other_arguments(part)


def _small_copy(scheduler: Any) -> Any:
    """A copy with its optimizer, in which one number stands for each parameter."""
    import torch

    memo: dict[int, Any] = {}
    for group in scheduler.optimizer.param_groups:
        for parameter in group["params"]:
            memo[id(parameter)] = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    try:
        # A scheduler that was stepped by hand counts its optimizer's steps in a method that it has put there.
        return copy.deepcopy(scheduler, memo)
    except Exception as error:
        raise InputError(
            f"learning_rate: {type(scheduler).__name__} cannot be copied ({error}): {REMEDY}"
        ) from error
