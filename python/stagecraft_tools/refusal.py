"""What a tool refuses: one line on standard error, and exit code 2."""


class Refused(Exception):
    """What is wrong, where, and what to do."""
