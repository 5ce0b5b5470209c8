"""Tools are the work of one process: of several each would do it, and write the same files."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .refusal import Refused

# How many processes there are, and which one this is; as base/launch.cpp reads them.
SOURCES = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("SLURM_NTASKS", "SLURM_PROCID"),
    ("WORLD_SIZE", "RANK"),
)


def require_alone(environment: Mapping[str, str] = os.environ) -> None:
    """Throws Refused where a launcher started several processes; only the first one's has a text."""
    for size, rank in SOURCES:
        world, place = environment.get(size, ""), environment.get(rank, "")
        if not world.isdecimal() or int(world) < 2 or not place.isdecimal():
            continue
        if int(place) != 0:
            raise Refused("")
        raise Refused(
            f"is the work of one process, but {world} were launched ({size}={world}): start it without the"
            " launcher"
        )
