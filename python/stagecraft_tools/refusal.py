"""What a tool refuses: one line on standard error, and an exit code."""


class Refused(Exception):
    """What is wrong, where, and what to do."""

    code = 2
