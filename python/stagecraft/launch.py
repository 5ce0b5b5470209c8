"""How this process was started: alone, by torchrun, or by mpirun or srun."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from . import errors
from .errors import InputError
from .meeting import agreed_name
from .torchrun import VARIABLE, leave_last_error

T = TypeVar("T")


@dataclass
class Ranks:
    """What a session's ranks are."""

    name: str = ""  # "": threads of this process; "mpi"; or the name of a group of torch.distributed
    machine_rank: int = 0  # among this machine's processes
    machine_world: int = 1
    group: Any = None  # of torch.distributed, which lives as long as the session

    def gather(self, text: str) -> list[str]:
        """Everybody's, in rank order. Collective."""
        from .engine import _engine

        if not self.name:
            return [text]
        if self.group is None:
            return _engine.gather_over_mpi(text)
        import torch.distributed as dist

        texts: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(texts, text, group=self.group)
        return texts

    def together(self, work: Callable[[], T]) -> T:
        """What each process does by itself before all go on: an error of one is raised by all, that of the
        lowest rank, of the same class and with the same words. Collective."""
        failed: Exception | None = None
        try:
            made = work()
        except Exception as error:
            failed = error
        mine = None if failed is None else [type(failed).__name__, str(failed)]
        for theirs in map(json.loads, self.gather(json.dumps(mine)) if self.name else [json.dumps(mine)]):
            if theirs is None:
                continue
            if failed is not None and theirs == mine:
                raise failed
            name, words = theirs
            kind = getattr(errors, name, None)
            raise (errors.PeerError(f"another rank: {name}: {words}") if kind is None else kind(words))
        return made

    def close(self) -> None:
        if self.group is None:
            return
        import torch.distributed as dist

        group, self.group = self.group, None
        if dist.is_initialized():
            dist.destroy_process_group(group)

    @contextlib.contextmanager
    def closed_by_an_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


def ranks_of_this_start() -> Ranks:
    """Collective under torchrun: every process makes a group of its own for each pipeline."""
    from .engine import _engine

    launch = _engine.launch()
    if launch["world"] == 1:
        return Ranks()
    if not launch["torch"]:
        end_before_all()
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
        end_before_all()
    _open.add(pipeline)


def end_before_all() -> None:
    """Before whatever was to happen at Python's end so far."""
    atexit.unregister(_end)
    atexit.register(_end)


def _end() -> None:
    """MPI is finalized once, behind all pipelines. Python has set sys.last_value where an exception ends it:
    then the other ranks must not wait for this one."""
    from . import _engine

    error = getattr(sys, "last_value", None)
    why = "" if error is None else f"its Python ended with {type(error).__name__}: {error}"
    unheard: Exception | None = None
    for pipeline in list(_open):
        try:
            pipeline.close(why)
        except Exception as its:
            unheard = unheard or its
    _engine.finish(error is not None or unheard is not None)
    if unheard is not None and error is None:  # of a step that nobody read
        raise unheard
