"""What goes wrong, by what is to be done about it. The texts are those of the command line."""


class StagecraftError(Exception):
    """Any of these."""


class InputError(StagecraftError, ValueError):
    """Something given cannot be used: the message says what, and what was expected."""


class CaptureError(InputError):
    """A module that cannot be captured: which part, where it comes from, and what to do."""


class NotFiniteError(InputError):
    """A loss or a gradient that is no number. The weights are those before the step."""


class RefusedError(StagecraftError):
    """No plan fits, a program is not safe, or memory does not suffice."""


class PeerError(StagecraftError):
    """Another rank failed, hung or is gone."""


class InternalError(StagecraftError):
    """A defect of Stagecraft."""
