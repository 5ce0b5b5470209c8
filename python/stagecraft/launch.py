"""How this process was started: alone, by torchrun, or by mpirun or srun."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from dataclasses import dataclass
from typing import Any

from .errors import InputError
from .meeting import agreed_name
from .torchrun import VARIABLE, leave_last_error


@dataclass(frozen=True)
class Ranks:
    """What a session's ranks are."""

    name: str = ""  # "": threads of this process; "mpi"; or the name of a group of torch.distributed
    machine_rank: int = 0  # among this machine's processes
    machine_world: int = 1
    group: Any = None  # of torch.distributed, which lives as long as the session

    def close(self) -> None:
        if self.group is None:
            return
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group(self.group)


def ranks_of_this_start() -> Ranks:
    """Collective under torchrun: every process makes a group of its own for each pipeline."""
    from .engine import _engine

    launch = _engine.launch()
    if launch["world"] == 1:
        return Ranks()
    if not launch["torch"]:
        return Ranks("mpi")
    group = new_group()
    return Ranks(group.group_name, launch["machine_rank"], launch["machine_world"], group)


if os.environ.get(VARIABLE):
    atexit.register(leave_last_error)


def new_group() -> Any:
    """Of all processes that torchrun started, by Gloo.

    torchrun keeps one store for all its restarts, and Gloo would take addresses there that a dead process has
    left (PyTorch's issue 167288). So each start has a part of the store to itself."""
    import torch.distributed as dist

    if not dist.is_available():
        raise InputError("this torch has no torch.distributed, which torchrun's processes talk by")
    if not dist.is_initialized():
        store, rank, world = next(dist.rendezvous("env://"))
        own = dist.PrefixStore(agreed_name(store, rank, world), store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=world)
    return dist.new_group(backend="gloo")


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_the_end(pipeline: Any) -> None:
    """While its transport can still say goodbye."""
    if not _open:
        atexit.unregister(_end)
        atexit.register(_end)
    _open.add(pipeline)


def _end() -> None:
    """MPI is finalized once, behind all pipelines. Python has set sys.last_value where an exception ends it:
    then the other ranks must not wait for this one."""
    from . import _engine

    error = getattr(sys, "last_value", None)
    why = "" if error is None else f"its Python ended with {type(error).__name__}: {error}"
    for pipeline in list(_open):
        pipeline.close(why)
    _engine.finish(error is not None)
