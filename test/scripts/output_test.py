#!/usr/bin/env python3
"""What tools in Python write replaces nothing but their own, and is whole at every moment: killed at each
call that changes the disk.

    output_test.py SOURCE_DIR          exits with 77 where numpy is missing
"""

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, f"{os.path.abspath(sys.argv[1])}/python")
try:
    import numpy
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --models installs it")
    sys.exit(77)

from forked import in_fork
from stagecraft_tokenize.writer import Writer
from stagecraft_tools.files import leftovers
from stagecraft_tools.output import OutputFolder, recorded_in, strange_in
from stagecraft_tools.refusal import Refused

TOOL = "stagecraft-capture"


def put(path, text="text"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def write(path, text="new", tool=TOOL):
    with OutputFolder(tool, path) as output:
        put(f"{output.aside}/manifest.json", text)
        put(f"{output.aside}/graphs/a.json", text)
        output.publish()


def refusal_of(work):
    try:
        work()
    except Refused as refused:
        return str(refused)
    return None


def tree(folder):
    found = {}
    for at, folders, names in os.walk(folder):
        found.update(
            {os.path.join(at, name): None for name in folders if not os.path.islink(os.path.join(at, name))}
        )
        for name in names + [name for name in folders if os.path.islink(os.path.join(at, name))]:
            path = os.path.join(at, name)
            found[path] = os.readlink(path) if os.path.islink(path) else open(path, "rb").read()
    return found


# What lies at -o, the words of the refusal (None: it is replaced).
def web_app():
    put("x/manifest.json", '{"name": "my web app", "icons": []}')
    put("x/src/thesis.tex", "years of work")


def checkpoint():
    put("x/manifest.json", '{"format": 2, "layers": []}')
    put("x/complete", "")


def hand_written_model():
    put("x/manifest.json", '{"format": 2, "name": "m", "layers": [], "weights": {}, "checked": null}')
    put("x/graphs/a.json")


def ours(change=lambda: None):
    def make():
        write("x", "old")
        change()

    return make


def forged_record():
    put("x/work.txt")
    put("x/stagecraft_capture.json", json.dumps({"format": 1, "tool": TOOL, "files": []}))


def linked_graphs():
    shutil.move("x/graphs", "kept")
    os.symlink("../kept", "x/graphs")


AT_OUTPUT = [
    ("a web app", web_app, "did not make it"),
    ("a checkpoint of ours", checkpoint, "did not make it"),
    ("a model folder that nobody recorded", hand_written_model, "did not make it"),
    ("a hidden file alone", lambda: put("x/.git/config"), "holds .git and no"),
    ("a file", lambda: put("./x"), "is no folder"),
    ("a link to a capture", lambda: (write("y", "old"), os.symlink("y", "x")), "is no folder"),
    ("a link to nothing", lambda: os.symlink("nowhere", "x"), "is no folder"),
    ("another tool's", lambda: write("x", "old", "stagecraft-images"), "did not make it"),
    ("a record of nothing", forged_record, "holds work.txt"),
    ("a record that is no record", lambda: put("x/stagecraft_capture.json", "[1]"), "did not make it"),
    ("ours with a note", ours(lambda: put("x/notes.txt")), "holds notes.txt, which"),
    (
        "ours with a file among graphs",
        ours(lambda: put("x/graphs/mine.json")),
        "holds graphs/mine.json, which",
    ),
    ("ours with a folder", ours(lambda: os.mkdir("x/runs")), "holds runs, which"),
    (
        "ours with a file changed",
        ours(lambda: put("x/manifest.json", "fine-tuned by hand")),
        "holds manifest.json, which is not as",
    ),
    (
        "ours with a link for a file",
        ours(lambda: (os.remove("x/manifest.json"), os.symlink("../kept", "x/manifest.json"))),
        "holds manifest.json, which is not as",
    ),
    ("ours with a link for a folder", ours(linked_graphs), "holds graphs, which is not as"),
    (
        "ours with a folder for a file",
        ours(lambda: (os.remove("x/manifest.json"), os.mkdir("x/manifest.json"))),
        "holds manifest.json, which is not as",
    ),
    ("ours", ours(), None),
    ("ours with a file lost", ours(lambda: os.remove("x/graphs/a.json")), None),
    ("an empty folder", lambda: os.mkdir("x"), None),
    ("nothing", lambda: None, None),
]


def test_records_name_nothing_outside():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        put("./work.txt")
        put(
            "x/stagecraft_capture.json",
            json.dumps(
                {
                    "format": 1,
                    "tool": TOOL,
                    "files": [
                        {"name": "../work.txt", "bytes": 4},
                        {"name": f"{folder}/work.txt", "bytes": 4},
                    ],
                }
            ),
        )
        write("x")
        assert open("work.txt").read() == "text" and sorted(os.listdir(".")) == ["work.txt", "x"]


def test_what_is_replaced():
    for name, make, words in AT_OUTPUT:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            make()
            before, refused = tree("."), refusal_of(lambda: write("x"))
            if words is None:
                assert (
                    refused is None and open("x/manifest.json").read() == "new" and os.listdir(".") == ["x"]
                ), (name, refused)
            else:
                assert refused and words in refused and tree(".") == before, (name, refused)
            # What comes while the tool works is seen too.
            if os.path.isdir("x") and words is None:
                with OutputFolder(TOOL, "x") as output:
                    put("x/notes.txt")
                    assert "notes.txt" in refusal_of(output.publish), name
                assert (
                    open("x/manifest.json").read() == "new"
                    and open("x/notes.txt").read() == "text"
                    and os.listdir(".") == ["x"]
                ), name


def test_where_nothing_can_be_written():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        put("./file")
        for path, words in (
            ("no/such/folder/x", "there is no folder"),
            ("file/x", "there is no folder"),
            ("", "expected the name"),
            ("/proc/x", "nothing can be written in /proc"),
            ("n" * 300, "nothing can be written"),
        ):
            refused = refusal_of(lambda: OutputFolder(TOOL, path))
            assert refused and words in refused, (path, refused)
        assert os.listdir(".") == ["file"]


CHANGES = ("rename", "remove", "rmdir", "mkdir", "fsync", "open")


def killed_at(n, work):
    """Whether the process ended before its n-th call that changes the disk, as by SIGKILL."""

    def child():
        count = 0

        def dying(call):
            def instead(*given, **named):
                nonlocal count
                count += 1
                if count == n:
                    os._exit(99)
                return call(*given, **named)

            return instead

        for name in CHANGES:
            setattr(os, name, dying(getattr(os, name)))
        work()

    return in_fork(child) == 99


def test_kills_of_folders():
    kills = 0
    for kills in range(1, 100):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            write("x", "old")
            killed = killed_at(kills, lambda: write("x"))
            whole = [
                f
                for f in ("x", *leftovers("x"))
                if recorded_in(f, TOOL)
                and strange_in(f, TOOL) is None
                and os.path.exists(f"{f}/graphs/a.json")
                and os.path.exists(f"{f}/manifest.json")
            ]
            assert whole, f"killed at call {kills}: nothing whole is left of {tree('.')}"
            assert os.path.isdir("x") or len(whole) == 2, "the old and the new, where neither has its name"
            left, said = leftovers("x"), io.StringIO()
            with contextlib.redirect_stderr(said):
                write("x", "newer")
            assert open("x/manifest.json").read() == "newer" and all(
                f"note: {os.path.abspath(f)} is " in said.getvalue() for f in left
            ), said.getvalue()
            if not killed:
                assert not left
                break
    assert kills > 10, kills
    print(f"folders: killed {kills - 1} times")


def tokens(value, replace=True):
    writer = Writer("t", 100, replace)
    try:
        writer.add([value] * value)
        writer.finish()
    except BaseException:
        writer.give_up()
        raise


def test_kills_of_tokens():
    """The index and the tokens belong together at every moment, and one whole pair is there."""

    def pair(value):
        return (bytes([value, 0]) * value, value)

    kills = 0
    for kills in range(1, 100):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            tokens(3)
            killed = killed_at(kills, lambda: tokens(5))

            def found(name):
                return [open(f, "rb").read() for f in (name, *leftovers(name)) if os.path.exists(f)]

            def count(index):
                return int.from_bytes(index[34:38], "little") if len(index) > 38 else None

            there = [
                value
                for value in (3, 5)
                if pair(value)[0] in found("t.bin") and value in map(count, found("t.idx"))
            ]
            assert there, f"killed at call {kills}: {tree('.')}"
            if os.path.exists("t.idx"):
                assert open("t.bin", "rb").read() == pair(count(open("t.idx", "rb").read()))[0], (
                    "an index beside other tokens"
                )
            if not killed:
                assert sorted(os.listdir(".")) == ["t.bin", "t.idx"]
                break
    assert kills > 5, kills
    print(f"tokens: killed {kills - 1} times")


def test_tokens_replace_tokens_alone():
    for name, make in (
        ("a game's data", lambda: put("./t.bin")),
        ("an index of something else", lambda: put("./t.idx", "x" * 100)),
        ("tokens of another index", lambda: (tokens(3), put("./t.bin", "longer than it was"))),
        ("a link", lambda: (put("./kept"), os.symlink("kept", "t.bin"))),
        ("a folder", lambda: os.mkdir("t.bin")),
    ):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            make()
            before = tree(".")
            assert "no file of tokens" in (refusal_of(lambda: tokens(5)) or ""), name
            assert tree(".") == before, name
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        tokens(3)
        assert "give --replace" in refusal_of(lambda: tokens(5, replace=False))


test_what_is_replaced()
test_records_name_nothing_outside()
test_where_nothing_can_be_written()
test_kills_of_folders()
test_kills_of_tokens()
test_tokens_replace_tokens_alone()
os.chdir("/")
