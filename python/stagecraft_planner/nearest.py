"""The name that was meant, and functions that know it."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


# What other libraries call an argument of ours, by its letters.
OTHER_NAMES = {
    "batch_size": "micro_batch_size",
    "chunks": "micro_batches",
    "clip_grad_norm": "gradient_clipping",
    "criterion": "loss",
    "bandwidth": "bytes_per_second",
    "bandwidth_gbps": "bytes_per_second",
    "data": "batch",
    "dtype": "precision",
    "grad_clip": "gradient_clipping",
    "gradient_accumulation_steps": "micro_batches",
    "learning_rate": "lr",
    "lr": "learning_rate",
    "lr_scheduler": "learning_rate",
    "max_grad_norm": "gradient_clipping",
    "max_norm": "gradient_clipping",
    "max_steps": "steps",
    "mixed_precision": "precision",
    "model": "module",
    "n_microbatches": "micro_batches",
    "num_devices": "devices",
    "num_stages": "stages",
    "pp_size": "stages",
    "scheduler": "learning_rate",
    "total_steps": "steps",
    "torch_dtype": "precision",
}
_OTHER = {"".join(letter for letter in name if letter.isalnum()): ours for name, ours in OTHER_NAMES.items()}


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """`; did you mean "stages"?`, or nothing where no name is near."""
    known = list(names)
    near = [name for name in known if _letters(name) == _letters(word)]
    near = near or [name for name in known if name == _OTHER.get(_letters(word))]
    near = near or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f'; did you mean "{near[0]}"?' if near else ""


def _letters(name: str) -> str:
    """What people remember of a name: its letters, in whatever case and with whatever between."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def keywords_checked(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which answers a keyword that it does not take with the nearest one that it does."""
    names = [name for name in inspect.signature(function).parameters if not name.startswith("_")]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                meant = did_you_mean(name, names) or f"; it takes {', '.join(names)}"
                raise TypeError(f'{function.__name__}() takes no "{name}"{meant}')
        return function(*args, **kwargs)

    return checked
