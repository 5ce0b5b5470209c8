"""What torchrun's summary says of a script that an exception ends.

torchrun names a file to each worker (TORCHELASTIC_ERROR_FILE), and shows as root cause the failure with the
earliest time in it, in whole seconds. torch.distributed.elastic's `record` around a main() writes it; this
does where nothing else has."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

from .errors import PeerError

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def leave_error(error: BaseException, now: float | None = None) -> None:
    """Writes that file, whole or not at all. Never throws.

    A PeerError is of a second later: the error that it only heard of is the root cause."""
    path = os.environ.get(VARIABLE, "")
    if not path or os.path.exists(path):
        return
    seconds = int(time.time() if now is None else now) + isinstance(error, PeerError)
    said = {
        "message": f"{type(error).__name__}: {error}",
        "errorCode": getattr(error, "code", 1),
        "extraInfo": {
            "py_callstack": "".join(traceback.format_exception(error)),
            "timestamp": str(seconds),
        },
    }
    aside = f"{path}.{os.getpid()}.part"
    try:
        with open(aside, "w", encoding="utf-8") as file:
            json.dump({"message": said}, file)
        os.replace(aside, path)
    except OSError:  # torchrun shows the exit code alone
        return


def leave_last_error() -> None:
    """At the end of Python: it has set sys.last_value where an exception ends it."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException):
        leave_error(error)
