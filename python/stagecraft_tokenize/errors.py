"""What the command refuses: one line, exit code 2."""


class TokenizeError(Exception):
    pass
