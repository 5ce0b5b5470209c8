"""A name that all processes of this start share and no earlier start had, over a store that keeps what
earlier ones wrote."""

from __future__ import annotations

import secrets
import time
from typing import Any

from .errors import PeerError

KEY = "stagecraft/meeting"
PATIENCE = 600.0  # seconds: as torch.distributed's own meeting
PERIOD = 0.005


def agreed_name(store: Any, rank: int, world: int, patience: float = PATIENCE) -> str:
    """Collective. Rank 0 chooses the name, and answers each rank's call with it. What it answers may be
    an old call, and what a rank reads an old answer: so an answer repeats its call, and a rank confirms.

    Throws PeerError where not all come within `patience` seconds."""
    until = time.monotonic() + patience
    if rank != 0:
        return _called(store, rank, until)
    name = f"stagecraft/{secrets.token_hex(8)}"
    answered: dict[int, bytes] = {}
    waiting = set(range(1, world))
    while waiting:
        for each in sorted(waiting):
            call = _read(store, f"{KEY}/call/{each}")
            if call and call != answered.get(each):
                store.set(f"{KEY}/answer/{each}", f"{call.decode()} {name}")
                answered[each] = call
            if _read(store, f"{KEY}/confirmed/{each}") == name.encode():
                waiting.discard(each)
        _wait(until, waiting)
    return name


def _called(store: Any, rank: int, until: float) -> str:
    call = secrets.token_hex(8)
    store.set(f"{KEY}/call/{rank}", call)
    while True:
        said, _, name = _read(store, f"{KEY}/answer/{rank}").decode().partition(" ")
        if said == call:
            store.set(f"{KEY}/confirmed/{rank}", name)
            return name
        _wait(until, {0})


def _read(store: Any, key: str) -> bytes:
    """b"" where the key was never set."""
    return bytes(store.get(key)) if store.check([key]) else b""


def _wait(until: float, ranks: set[int]) -> None:
    if ranks and time.monotonic() > until:
        raise PeerError(f"rank {min(ranks)} does not come: its process has not started, or ended at once")
    time.sleep(PERIOD)
