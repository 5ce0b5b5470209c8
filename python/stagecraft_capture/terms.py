"""Named terms of a loss: numbers that a loss function returns beside the loss. A run reports them, and trains
the loss alone.

    return {"loss": ce + 0.01 * aux, "ce": ce, "aux": aux}
    return ce + 0.01 * aux, {"ce": ce, "aux": aux}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from .errors import CaptureError

TRAINED = "loss"  # the key of what is trained
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,39}")  # as models/losses/term_names.h has it
MOST = 32

Terms = dict[str, torch.Tensor]


def loss_and_terms(made: Any, at: str = "") -> tuple[Any, Terms]:
    """What a loss function returned, as the loss and its terms, in the order of their names. `at`: where the
    function stands, for messages. Throws CaptureError for terms that are none."""
    if isinstance(made, Mapping):
        if TRAINED not in made:
            names = ", ".join(map(str, made)) or "nothing"
            raise CaptureError(
                f"{at}the loss returns a {type(made).__name__} of {names}: put what is trained under"
                f" {TRAINED!r}, as in {{'loss': total, 'ce': ce}}"
            )
        loss, terms = made[TRAINED], {name: term for name, term in made.items() if name != TRAINED}
    elif isinstance(made, (tuple, list)) and len(made) == 2 and isinstance(made[1], Mapping):
        loss, terms = made[0], dict(made[1])
        if TRAINED in terms:
            raise CaptureError(
                f"{at}the loss returns a term of the name {TRAINED!r}, which is that of what is trained: give"
                " the term another name"
            )
    else:
        return made, {}
    for name, term in terms.items():
        require_term(name, term, at)
    if len(terms) > MOST:
        raise CaptureError(f"{at}the loss returns {len(terms)} terms; there may be {MOST}: sum some up")
    return loss, dict(sorted(terms.items()))


def require_term(name: object, term: object, at: str) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise CaptureError(
            f"{at}the loss returns a term of the name {name!r}: give it one of 1 to 40 letters, digits, _ . /"
            " or -, which begins with a letter, a digit or _"
        )
    if not isinstance(term, torch.Tensor):
        raise CaptureError(
            f"{at}the loss's term {name!r} is a {type(term).__name__}: give a tensor of one number, without"
            " .item() or float()"
        )
    if term.dim() != 0 or term.is_complex():
        kind = f"{str(term.dtype).removeprefix('torch.')}{list(term.shape)}"
        raise CaptureError(
            f"{at}the loss's term {name!r} is a tensor of {kind}: give one number, such as its .mean() or"
            " .sum()"
        )


def detached(terms: Terms) -> tuple[Terms, ...]:
    """What a module returns behind its output and its loss: nothing, or the terms."""
    return ({name: term.detach() for name, term in terms.items()},) if terms else ()


def of_module(made: Any) -> Terms:
    """Those that a module with a loss returned."""
    return made[2] if len(made) > 2 else {}
