"""What the command refuses."""

from stagecraft_tools.refusal import Refused


class TokenizeError(Refused):
    pass
