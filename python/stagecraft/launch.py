"""How this process was started: alone, by torchrun, or by mpirun or srun."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .errors import InputError


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
    if _by_torchrun():
        return _of_torchrun()
    from . import _engine

    launch = _engine.launch()
    return Ranks("mpi") if launch["world"] > 1 else Ranks()


def _by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and _number("WORLD_SIZE") > 1


def _of_torchrun() -> Ranks:
    import torch.distributed as dist

    if not dist.is_available():
        raise InputError("this torch has no torch.distributed, which torchrun's processes talk by")
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    group = dist.new_group(backend="gloo")
    return Ranks(group.group_name, _number("LOCAL_RANK"), max(1, _number("LOCAL_WORLD_SIZE")), group)


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0
