"""What goes wrong, by what is to be done about it. The texts are those of the command line."""

from stagecraft_planner.errors import InputError, InternalError, PeerError, RefusedError, StagecraftError


class CaptureError(InputError):
    """A module that cannot be captured: which part, where it comes from, and what to do."""


class NotFiniteError(InputError):
    """A loss or a gradient that is no number. The weights are those before the step."""


__all__ = [
    "CaptureError",
    "InputError",
    "InternalError",
    "NotFiniteError",
    "PeerError",
    "RefusedError",
    "StagecraftError",
]
