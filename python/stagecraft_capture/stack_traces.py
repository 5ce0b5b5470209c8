"""Where in the user's Python an operator of an exported graph comes from. torch.export notes functions that
are called `forward` alone, so that losses and functions that a forward calls would have no place; and of
every operator it reads all frames, a hundred and more of its own."""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from unittest import mock

from .errors import OURS, TORCH
from .torch_private import proxy


class UsersFrames:
    """In place of torch's CapturedTraceback: up to the call of torch.export the user's frames, oldest first,
    or where there are none those of the modules of torch."""

    @classmethod
    def extract(cls) -> "UsersFrames":
        return cls()

    def summary(self) -> traceback.StackSummary:
        users: list[FrameType] = []
        modules: list[FrameType] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(OURS):
                if code.co_name == "export":
                    break
            elif not code.co_filename.startswith(TORCH):
                users.append(frame)
            if code.co_name == "forward":
                modules.append(frame)
            frame = frame.f_back

        def of(frame: FrameType) -> traceback.FrameSummary:
            return traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)

        return traceback.StackSummary.from_list([of(frame) for frame in reversed(users or modules)])


@contextlib.contextmanager
def with_users_frames() -> Iterator[None]:
    with (
        mock.patch.object(proxy, "CapturedTraceback", UsersFrames),
        mock.patch.object(proxy.TracerBase, "_filter_traceback_frames", lambda tracer, frames: frames),
    ):
        yield
