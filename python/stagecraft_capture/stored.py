"""Tensors that modules keep as attributes for the loss: an expert's `self.aux_loss`, a head's features.

    penalty = sum(m.aux_loss for m in model.modules() if hasattr(m, "aux_loss"))
    loss = cross_entropy(output, batch["y"]) + 0.01 * penalty

They go to the loss beside what the module returns, and the loss finds them where the forward left them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .calls import called
from .results import Reads, taken_apart
from .users_code import state_kept

Place = tuple[str, str]  # path of the module, name of the attribute


def attributes(module: torch.nn.Module) -> dict[Place, torch.Tensor]:
    return {
        (path, name): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor)
    }


def taken(module: torch.nn.Module, places: Sequence[Place]) -> tuple[torch.Tensor, ...]:
    return tuple(getattr(module.get_submodule(path), name) for path, name in places)


@contextlib.contextmanager
def put(module: torch.nn.Module, places: Sequence[Place], values: Sequence[torch.Tensor]) -> Iterator[None]:
    """Others in their places, for as long as the loss reads them."""

    held = [(module.get_submodule(path), name) for path, name in places]
    before = [vars(part).get(name) for part, name in held]
    for (part, name), value in zip(held, values):
        setattr(part, name, value)
    try:
        yield
    finally:
        for (part, name), tensor in zip(held, before):
            setattr(part, name, tensor)
            if tensor is None:
                delattr(part, name)


def read_by(
    loss: Callable[[Any, Any], Any], module: torch.nn.Module, fields: dict[str, torch.Tensor]
) -> list[Place]:
    """Places of what the forward has just made and the loss reads, besides what the module returns, in
    evaluation and in training alike. `fields`: two samples, as
    the loss gets them. Nothing where one of these fails, which is said
    later."""
    found: list[Place] | None = None
    for training in (False, True):
        with state_kept(module), torch.random.fork_rng(devices=[]), contextlib.suppress(Exception):
            earlier = {id(tensor) for tensor in attributes(module).values()}
            made = called(module.train(training), dict(fields))
            returned = {id(leaf) for _, leaf in taken_apart(made)[0]}
            known = {
                place: tensor
                for place, tensor in attributes(module).items()
                if id(tensor) not in earlier | returned
            }
            with Reads(dict(enumerate(known.values()))) as reads:
                loss(made, fields)
            here = [place for i, place in enumerate(known) if i in reads.found]
            found = here if found is None else [place for place in found if place in here]
            continue
        return []
    return found or []
