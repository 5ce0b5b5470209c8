"""Prints "whole" where the bundle is as it was packed and its programs may be started; else one line that
says what is not."""

import hashlib
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
FACTS = ("commit", "build", "torch", "cuda", "files")
NAMED = 12  # files


def same(file):
    try:
        with open(os.path.join(ROOT, file["path"]), "rb") as content:
            return hashlib.sha256(content.read()).hexdigest() == file["sha256"]
    except OSError:
        return False


def some(names):
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def wrong():
    """Text, or None."""
    if sys.version_info < (3, 10):  # noqa: UP036  # this machine's Python may be any
        return (
            f"{sys.executable} is Python {sys.version.split()[0]}, and torch needs 3.10 or newer; PYTHON=..."
            " names another"
        )
    try:
        with open(os.path.join(ROOT, "MANIFEST.json"), encoding="utf-8") as text:
            manifest = json.load(text)
        lacking = [fact for fact in FACTS if not manifest.get(fact)]
        changed = [file["path"] for file in manifest["files"] if not same(file)] if not lacking else []
        programs = [file["path"] for file in manifest["files"] if file.get("program")] if not lacking else []
    except OSError as error:
        return f"{ROOT}/MANIFEST.json: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{ROOT}/MANIFEST.json is damaged ({type(error).__name__}: {error}): unpack the archive again"
    if lacking:
        return f"{ROOT}/MANIFEST.json is damaged (no {', '.join(lacking)}): unpack the archive again"
    if changed:
        return f"not as packed: {some(changed)}: unpack the archive again"
    if os.statvfs(ROOT).f_flag & os.ST_NOEXEC:
        return f"the file system of {ROOT} lets no program start (noexec): unpack the archive elsewhere"
    barred = [path for path in programs if not os.access(os.path.join(ROOT, path), os.X_OK)]
    if barred:
        return f"may not be executed: {some(barred)}: unpack the archive by tar, or chmod +x them"
    return None


if __name__ == "__main__":
    PROBLEM = wrong()
    print("gpu_first: " + " ".join(PROBLEM.split()) if PROBLEM else "whole")
