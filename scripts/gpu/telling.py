"""Which line of a part's output says what happened."""

import re

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
# Open MPI's own, between two lines of dashes: that a process has ended, seldom why.
BANNER = re.compile(r"^-{20,}\n((?:(?!-{20,}$).*\n)*?)-{20,}$", re.MULTILINE)
OF_MPI = re.compile(r"\b(MPI|MPI_ABORT|PRTE|PMIx|prterun|prted?|mpirun)\b")
NO_DEVICE = re.compile(r"no device|no CUDA device|skipped: no |has no NVIDIA driver|Found no NVIDIA driver")
# Those that tell most come first.
CAUSES = [r"drill: FAILED", r"stagecraft: (?!note: )", r"FAILED|rank \d+ of \d+: ", r"\w*(Error|Exception)\b"]


def clean(text):
    """Without control characters and what a terminal takes them for; line ends stay."""
    lines = (
        "".join(
            character if character.isprintable() else " " if character == "\t" else "" for character in line
        ).strip()
        for line in ESCAPES.sub("", text).splitlines()
    )
    return "\n".join(lines)


def lines_of(text):
    return [line for line in clean(text).splitlines() if line.strip(" -=")]


def last(text):
    """The last line that is not a banner's; else the first of the last banner; else nothing."""
    text = clean(text) + "\n"
    banners = [block for block in BANNER.findall(text) if OF_MPI.search(block)]
    others = lines_of(BANNER.sub(lambda found: "" if OF_MPI.search(found.group(1)) else found.group(0), text))
    return others[-1] if others else (lines_of(banners[-1]) or [""])[0] if banners else ""


def cause(text):
    """Of what has failed: the first line that names a cause."""
    lines = lines_of(text)
    for pattern in CAUSES:
        for line in lines:
            if re.match(pattern, line):
                return line
    return last(text)


def no_device(text):
    """The line that says so, or nothing."""
    return next((line for line in reversed(lines_of(text)) if NO_DEVICE.search(line)), "")
