"""The profile of a module, for the planner."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stagecraft_planner import Profile
from stagecraft_planner.nearest import keywords_checked

from . import captured, checks
from .optimizers import Optimizer
from .prepared import merged, prepared_of
from .telling import phase

if TYPE_CHECKING:
    import torch

    from .pipeline import Batch


@keywords_checked
def profile(
    module: torch.nn.Module,
    batch: Batch,
    *,
    loss: captured.Loss | str | None = None,
    optimizer: Optimizer | torch.optim.Optimizer | str = "AdamW",
    micro_batches: int | None = None,
    precision: str | torch.dtype = "float32",
    layers: str = "auto",
    lengths: Sequence[int] = (),
    cache: bool = True,
    config: Mapping[str, Any] | None = None,
) -> Profile:
    """What each layer of `module` takes on this machine, for `plan()`: milliseconds of forward, backward and
    update, bytes of weights, activations and messages. Takes at most 15 s per micro-batch size.

    module, batch, loss, optimizer, precision, layers, lengths, cache: as for `pipeline()`.
    micro_batches: of the batch; one of their size is measured.
    config: further keys, such as {"profiler": {"micro_batch_sizes": [4, 8]}} for several sizes.

    Throws InputError and CaptureError.
    """
    from .engine import _engine

    prepared = prepared_of(
        module,
        batch,
        loss=loss,
        optimizer=optimizer,
        micro_batches=micro_batches,
        precision=precision,
        layers=layers,
        lengths=lengths,
        cache=cache,
    )
    made = merged(prepared.config | {"train_steps": 1}, checks.keys_of_a_config(config))
    with phase("measuring layers"):
        return Profile.from_json(_engine.profile(json.dumps(made), dict(prepared.fields)))
