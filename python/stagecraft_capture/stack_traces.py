"""Where in the user's Python an operator of an exported graph comes from. torch.export notes functions that are called `forward` alone, so
that losses and functions that a forward calls would have no place."""

import contextlib
import traceback

from torch.fx.proxy import TracerBase

from .errors import OURS, TORCH


def users_frames(frames):
    """Of those behind the call of torch.export, oldest first: the user's, or where there are none the modules' of torch."""
    begin = max((i for i, frame in enumerate(frames) if frame.filename.startswith(OURS) and frame.name == "export"), default=-1)
    inside = frames[begin + 1 :]
    return [f for f in inside if not f.filename.startswith((TORCH, OURS))] or [f for f in inside if f.name == "forward"]


@contextlib.contextmanager
def with_users_frames():
    before = TracerBase._filter_traceback_frames
    TracerBase._filter_traceback_frames = lambda tracer, frames: traceback.StackSummary.from_list(users_frames(frames))
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = before
