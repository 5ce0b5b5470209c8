"""The processes of a part. As a program: ends those of a runner that is gone.

members.py MARK     waits until its standard input is closed, then ends what carries MARK
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

MARK = "STAGECRAFT_GPU_PART"  # in the environment of all that a part starts on this machine


class Members:
    """A part's session, and what carries its mark into others."""

    def __init__(self, mark, leader=None):
        self.leader, self.mark = leader, f"{MARK}={mark}".encode()

    def find(self):
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = (
                    Path(f"/proc/{entry}/stat")
                    .read_text(encoding="utf-8", errors="replace")
                    .rpartition(")")[2]
                    .split()
                )
                if fields[0] != "Z" and (
                    int(fields[3]) == self.leader
                    or any(
                        variable.startswith(self.mark)
                        for variable in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                    )
                ):
                    found.append(int(entry))
            except (OSError, IndexError):
                continue  # it has ended, or is not ours
        return sorted(found)

    def kill(self):
        for _ in range(50):
            left = self.find()
            if not left:
                return
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.read()
    Members(sys.argv[1]).kill()
