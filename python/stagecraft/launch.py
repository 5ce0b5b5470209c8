"""How this process was started: alone, or as one of several."""

from __future__ import annotations


def ranks_of_this_start() -> str:
    """What a session's ranks are: "" threads of this process, "mpi" processes under mpirun or srun."""
    from . import _engine

    launch = _engine.launch()
    return "mpi" if launch["world"] > 1 else ""
