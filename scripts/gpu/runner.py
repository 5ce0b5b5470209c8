"""Runs parts one after the other, each in a session of its own and with a limit of its own."""

import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import telling
from bundle import ROOT, refuse
from members import MARK, Members
from stacks import stacks

STACKS_SECONDS = 30  # for all processes of a part
ENDING = 12  # seconds kept for the stacks and the end of the last part
PASSED, FAILED, NOT_OVER, NO_GPU, SKIPPED, STOPPED = (
    "passed",
    "FAILED",
    "NOT OVER",
    "no device",
    "skipped",
    "stopped",
)
NOTHING_RAN = 3


class Stopped(BaseException):
    """By a signal, in the middle of a part."""


def end_with_parent():
    """A runner that is killed takes the part's first process with it, at once."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def say(text, **more):
    """A reader that has gone away stops nothing."""
    try:
        print(text, flush=True, **more)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), more.get("file", sys.stdout).fileno())


def fill(word, out):
    for name, value in (("out", out), ("root", ROOT), ("python", sys.executable)):
        word = word.replace("{" + name + "}", str(value))
    return word


class Runner:
    def __init__(self, out, seconds, environment, manifest):
        self.out, self.environment = out, environment
        self.commit, self.build = manifest["commit"], manifest["build"]
        self.until = time.monotonic() + seconds
        self.results, self.lost = None, False
        try:
            out.mkdir(parents=True, exist_ok=True)
            self.lock()
            self.results = open(out / "results.jsonl", "a+b")  # noqa: SIM115  # until the process ends
            if self.results.tell() > 0 and not self.whole_lines():
                self.results.write(b"\n")  # behind what a killed runner left of a line
        except FileExistsError:
            refuse(f"--out {out}: is no folder")
        except OSError as error:
            refuse(f"--out {out}: {error.strerror}")
        self.told = {}
        self.signal, self.in_part = 0, False
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self.stop)
        # A session of its own: what ends this one's process group does not end the guard.
        self.mark = f"{os.getpid()}."
        self.guard = subprocess.Popen(
            [sys.executable, ROOT / "scripts/gpu/members.py", self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def whole_lines(self):
        self.results.seek(-1, os.SEEK_END)
        return self.results.read(1) == b"\n"

    def lock(self):
        self.locked = open(self.out / "lock", "a+", encoding="utf-8")  # noqa: SIM115  # as long as it is locked
        try:
            fcntl.flock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.locked.seek(0)
            refuse(
                f"--out {self.out}: another gpu_first (process {self.locked.read().strip() or 'unknown'})"
                " writes there; wait for it, or name another folder"
            )
        except OSError as error:
            say(f"gpu_first: {self.out} has no locks ({error.strerror}): start no second gpu_first there")
        self.locked.truncate(0)
        self.locked.write(f"{os.getpid()}\n")
        self.locked.flush()

    def stop(self, number, _):
        self.signal = self.signal or number
        if self.in_part:
            self.in_part = False
            raise Stopped

    def tell(self, part, result, seconds, said, **more):
        """At once, so that nothing is lost where this is killed."""
        self.told.setdefault(result, []).append(part.name)
        say(f"{part.name:<24} {result:<10} {seconds:6.1f} s  {said[:150]}")
        try:
            self.results.write(
                json.dumps(
                    {
                        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
                        "part": part.name,
                        "result": result,
                        "seconds": round(seconds, 2),
                        "said": said,
                        "shows": part.shows,
                        "commit": self.commit,
                        "build": self.build,
                        **more,
                    }
                ).encode()
                + b"\n"
            )
            self.results.flush()
            os.fsync(self.results.fileno())
        except OSError as error:
            self.lost = True
            say(f"gpu_first: {self.out}/results.jsonl lacks {part.name}: {error.strerror}", file=sys.stderr)

    def runs_of(self, part):
        """Run folders that are there already."""
        found = {self.out / path for word in part.command for path in re.findall(r"\{out\}/(runs/\w+)", word)}
        return sorted(path for path in found if path.exists())

    def keep_others(self, chosen):
        """Refuses to replace a run that no earlier part here has made."""
        for part in chosen:
            if self.runs_of(part) and not (self.out / f"{part.name}.txt").exists():
                refuse(
                    f"{self.runs_of(part)[0]} is there, and no earlier {part.name} has made it; name another"
                    " --out, or move it away"
                )

    def clear(self, part):
        """Of this part's earlier run nothing stays that could be taken for this one's, or that the run would
        not write over."""
        for path in self.runs_of(part):
            shutil.rmtree(path)
        (self.out / f"{part.name}.stacks.txt").unlink(missing_ok=True)

    def start(self, part, command, mark, output):
        ours = {
            name: value
            for name, value in part.environment.items()
            if value is not None or name not in os.environ
        }
        variables = {
            name: value
            for name, value in {**self.environment, **ours, MARK: mark}.items()
            if value is not None
        }
        with open(output, "wb") as out:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509  # this process has one thread
            )

    def run(self, part):
        left = self.until - time.monotonic() - ENDING
        if left < part.needs:
            self.tell(part, SKIPPED, 0, f"takes {part.needs} s or more, and {max(0, left):.0f} s are left")
            return
        command = [fill(word, self.out) for word in part.command]
        if not shutil.which(command[0]) and not (ROOT / command[0]).exists():
            self.tell(part, SKIPPED, 0, f"no {command[0]} here")
            return
        begin, limit = time.monotonic(), min(part.seconds, left)
        output, mark = self.out / f"{part.name}.txt", f"{self.mark}{part.name}"
        try:
            self.clear(part)
            job = self.start(part, command, mark, output)
        except (OSError, subprocess.SubprocessError) as error:
            self.tell(part, FAILED, time.monotonic() - begin, f"cannot be started: {error}", command=command)
            return
        more, code, members = {}, None, Members(mark, job.pid)
        try:
            self.in_part = True
            if self.signal:
                raise Stopped
            code = job.wait(limit)
        except subprocess.TimeoutExpired:
            try:
                found = stacks(
                    members.find(), min(STACKS_SECONDS, self.until - 4 - time.monotonic()), {MARK: mark}
                )
                more["stacks"] = found[:20000]
                (self.out / f"{part.name}.stacks.txt").write_text(found, encoding="utf-8")
            except OSError as error:
                more["stacks"] = more.get("stacks", "") + f"(not written: {error})"
            except Stopped:
                pass
        except Stopped:
            pass
        finally:
            self.in_part = False
            members.kill()
            job.wait()
        self.judge(part, code, time.monotonic() - begin, limit, output, command=command, **more)

    def judge(self, part, code, took, limit, output, **more):
        try:
            with open(output, "rb") as written:
                written.seek(max(0, output.stat().st_size - (1 << 20)))
                text = telling.clean(written.read().decode(errors="replace"))
        except OSError as error:
            text = f"(no output: {error})"
        if self.signal and code is None:
            result, said = (
                STOPPED,
                f"stopped by {signal.Signals(self.signal).name[3:]}; last: {telling.last(text)}",
            )
        elif code is None:
            result, said = (
                NOT_OVER,
                f"after {limit:.0f} s; {part.name}.stacks.txt says where; last: {telling.last(text)}",
            )
        elif code == 0:
            result, said = PASSED, telling.last(text)
        elif missing := telling.no_device(text):
            result, said = NO_GPU, missing
        else:
            result, said = FAILED, f"exit code {code}: {telling.cause(text)}"
        self.tell(part, result, took, said, code=code, output=text[-6000:], **more)

    def run_all(self, chosen):
        """Returns the exit code."""
        for part in chosen:
            if not self.signal:
                self.run(part)
        self.guard.stdin.close()
        self.guard.wait()
        told = {name for names in self.told.values() for name in names}
        begun = {**self.told, "not begun": [part.name for part in chosen if part.name not in told]}
        say(
            "gpu_first: "
            + ", ".join(
                f"{len(names)} {result}" + ("" if result == PASSED else f" ({', '.join(names)})")
                for result, names in begun.items()
                if names
            )
            + (f"; stopped by {signal.Signals(self.signal).name[3:]}" if self.signal else "")
        )
        if self.signal:
            return 128 + self.signal
        if self.told.get(FAILED) or self.told.get(NOT_OVER) or self.lost:
            return 1
        if self.told.get(NO_GPU):
            return 77
        return 0 if self.told.get(PASSED) else NOTHING_RAN
