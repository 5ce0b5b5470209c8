"""The draws of a model in eager's order, so that the self-check's layers get the numbers that eager got."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from . import replay
from .noise import draw_of, is_drawn_over

if TYPE_CHECKING:
    from torch import fx

    from .composite import Composite


@dataclass
class Draws:
    nodes: list[fx.Node]  # in eager's order; nothing reads some
    order: list[int]  # which of them the layers draw, one after the other


def draws_of(composite: Composite) -> Draws:
    place = {node: i for i, node in enumerate(composite.drawing)}
    read = [n for n in composite.nodes if n in place and not is_drawn_over(n)]
    return Draws(composite.drawing, [place[n] for n in read])


@contextlib.contextmanager
def drawing_as_eager(draws: dict[int, Draws], b: int) -> Iterator[None]:
    """Around a forward of the layers with `b` samples. `draws`: of Model, by number of samples. Eager draws
    what nothing reads, too; and calls that were put together draw in another order than eager's."""
    (few, first), (more, second) = sorted(draws.items())[:2]
    order = first.order

    def draw(i: int) -> None:
        shapes = [each.nodes[i].meta["val"].shape for each in (first, second)]
        draw_of(first.nodes[i])([n + (m - n) // (more - few) * (b - few) for n, m in zip(*shapes)])

    in_order = order == sorted(order)
    replay.before_draw = _between(draw, order) if in_order else _from_states(draw, order, len(first.nodes))
    try:
        yield
    finally:
        replay.before_draw = None


def _between(draw: Callable[[int], None], order: list[int]) -> Callable[[], None]:
    """Draws what comes before the next one of the layers and is none of theirs."""
    left, done = list(order), 0

    def before() -> None:
        nonlocal done
        if left:
            for i in range(done, left[0]):
                draw(i)
            done = left.pop(0) + 1

    return before


def _from_states(draw: Callable[[int], None], order: list[int], count: int) -> Callable[[], None]:
    """Sets the generator as eager had it at each draw."""
    states = []
    for i in range(count):
        states.append(torch.get_rng_state())
        draw(i)
    left = list(order)

    def before() -> None:
        if left:
            torch.set_rng_state(states[left.pop(0)])

    return before
