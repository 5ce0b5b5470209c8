"""How far a run was sent to a target: RUN_DIR/follow/TARGET-xxxxxxxx.json, one file per target and place.

It is written before lines are sent, so a process that is killed at any moment sends no line twice; it may
leave out those of one batch. It also has what the target calls the run, which goes on there.
"""

import errno
import fcntl
import hashlib
import json
import os
from typing import Any

from stagecraft_tools.files import aside_of
from stagecraft_tools.refusal import Refused


class Place:
    """Held by one process at a time, until close()."""

    def __init__(self, folder: str, target: str, where: str) -> None:
        name = f"{target}-{hashlib.blake2b(where.encode(), digest_size=4).hexdigest()}"
        self.target, self.where = target, where
        self.path = os.path.join(folder, f"{name}.json")
        try:
            os.makedirs(folder, exist_ok=True)
            self.lock = os.open(os.path.join(folder, f"{name}.lock"), os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise Refused(f"{folder}: {error.strerror}; --state FOLDER keeps it elsewhere") from error
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # a file system may have no locks
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                self.close()
                raise Refused(
                    f"the run is followed to {target} at {where} already, by another process"
                ) from error
        self.run, self.id = "", ""
        self.step, self.validation = -1, -1  # the last that were sent
        self.end = ""  # which one was sent, with its report
        self.read()

    def read(self) -> None:
        if not os.path.exists(self.path):
            return
        try:
            with open(self.path, encoding="utf-8") as file:
                found = json.load(file)
            self.run, self.id, self.end = (str(found[key]) for key in ("run", "id", "end"))
            self.step, self.validation = int(found["step"]), int(found["validation"])
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(
                f"{self.path}: is not as stagecraft-follow wrote it: remove it to send the run again"
            ) from error

    def begin(self, run: str) -> bool:
        """Forgets what was sent of another run, which lay in the same folder. Returns whether there was
        one."""
        other = bool(self.run and run and run != self.run)
        if other:
            self.forget()
        self.run = run or self.run
        return other

    def forget(self) -> None:
        self.id, self.end, self.step, self.validation = "", "", -1, -1

    def is_new(self, line: dict[str, Any]) -> bool:
        return bool(line["step"] > (self.validation if line.get("validation") else self.step))

    def pass_line(self, line: dict[str, Any]) -> None:
        if line.get("validation"):
            self.validation = line["step"]
        else:
            self.step = line["step"]

    def write(self) -> None:
        document = {key: getattr(self, key) for key in ("run", "id", "step", "validation", "end")}
        document = {"format": 1, "to": self.target, "at": self.where, **document}
        aside = aside_of(self.path)
        with open(aside, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.write("\n")
        os.replace(aside, self.path)

    def close(self) -> None:
        os.close(self.lock)
