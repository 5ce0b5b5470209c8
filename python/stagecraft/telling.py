"""A line per phase while a pipeline is made, for who waits for it: of what takes a second or more, on stderr
where that is a terminal or a notebook, from the first process alone.

Whoever uses `logging` hears it there: with a handler the lines are records of the logger "stagecraft" of
level INFO, and `logging.getLogger("stagecraft").setLevel(logging.WARNING)` silences them."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator

PATIENCE = 1.0  # seconds


@contextlib.contextmanager
def phase(what: str) -> Iterator[None]:
    timer = threading.Timer(PATIENCE, tell, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # no thread of ours outlives the call


def tell(text: str) -> None:
    from .engine import _engine

    if _engine.launch()["rank"] > 0:
        return
    logger = logging.getLogger("stagecraft")
    if logger.level != logging.NOTSET or logger.hasHandlers():
        logger.info(text)
    elif _somebody_reads():
        print(f"stagecraft: {text}", file=sys.stderr, flush=True)


def _somebody_reads() -> bool:
    if sys.stderr is None:
        return False
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")
