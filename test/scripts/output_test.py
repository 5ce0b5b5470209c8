"""What tools in Python write replaces nothing but their own, and is whole at every moment: killed at each
call that changes the disk."""

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="scripts/setup.sh installs it")

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
            found[path] = os.readlink(path) if os.path.islink(path) else Path(path).read_bytes()
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


def test_records_name_nothing_outside(scratch):
    put("./work.txt")
    outside = [{"name": name, "bytes": 4} for name in ("../work.txt", f"{scratch}/work.txt")]
    put("x/stagecraft_capture.json", json.dumps({"format": 1, "tool": TOOL, "files": outside}))
    write("x")
    assert Path("work.txt").read_text() == "text"
    assert sorted(os.listdir(".")) == ["work.txt", "x"]


@pytest.mark.parametrize(("make", "words"), [pytest.param(*case, id=name) for name, *case in AT_OUTPUT])
def test_what_is_replaced(scratch, make, words):
    make()
    before, refused = tree("."), refusal_of(lambda: write("x"))
    if words is not None:
        assert refused
        assert words in refused
        assert tree(".") == before
        return
    assert refused is None
    assert Path("x/manifest.json").read_text() == "new"
    assert os.listdir(".") == ["x"]
    # What comes while the tool works is seen too.
    with OutputFolder(TOOL, "x") as output:
        assert output.replaces
        put("x/notes.txt")
        assert "notes.txt" in refusal_of(output.publish)
    assert Path("x/manifest.json").read_text() == "new"
    assert Path("x/notes.txt").read_text() == "text"
    assert os.listdir(".") == ["x"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no/such/folder/x", "there is no folder"),
        ("file/x", "there is no folder"),
        ("", "expected the name"),
        ("/proc/x", "nothing can be written in /proc"),
        ("n" * 300, "nothing can be written"),
    ],
)
def test_where_nothing_can_be_written(scratch, path, words):
    put("./file")
    refused = refusal_of(lambda: OutputFolder(TOOL, path))
    assert refused
    assert words in refused
    assert os.listdir(".") == ["file"]


def work_in(folder, monkeypatch):
    folder.mkdir()
    monkeypatch.chdir(folder)


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


def test_kills_of_folders(tmp_path, monkeypatch):
    kills = 0
    for kills in range(1, 100):
        work_in(tmp_path / str(kills), monkeypatch)
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
        assert Path("x/manifest.json").read_text() == "newer" and all(
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


def test_kills_of_tokens(tmp_path, monkeypatch):
    """The index and the tokens belong together at every moment, and one whole pair is there."""

    def pair(value):
        return (bytes([value, 0]) * value, value)

    kills = 0
    for kills in range(1, 100):
        work_in(tmp_path / str(kills), monkeypatch)
        tokens(3)
        killed = killed_at(kills, lambda: tokens(5))

        def found(name):
            return [Path(f).read_bytes() for f in (name, *leftovers(name)) if os.path.exists(f)]

        def count(index):
            return int.from_bytes(index[34:38], "little") if len(index) > 38 else None

        there = [
            value
            for value in (3, 5)
            if pair(value)[0] in found("t.bin") and value in map(count, found("t.idx"))
        ]
        assert there, f"killed at call {kills}: {tree('.')}"
        if os.path.exists("t.idx"):
            assert Path("t.bin").read_bytes() == pair(count(Path("t.idx").read_bytes()))[0], (
                "an index beside other tokens"
            )
        if not killed:
            assert sorted(os.listdir(".")) == ["t.bin", "t.idx"]
            break
    assert kills > 5, kills
    print(f"tokens: killed {kills - 1} times")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: put("./t.bin"), id="a game's data"),
        pytest.param(lambda: put("./t.idx", "x" * 100), id="an index of something else"),
        pytest.param(lambda: (tokens(3), put("./t.bin", "longer than it was")), id="tokens of another index"),
        pytest.param(lambda: (put("./kept"), os.symlink("kept", "t.bin")), id="a link"),
        pytest.param(lambda: os.mkdir("t.bin"), id="a folder"),
    ],
)
def test_tokens_replace_tokens_alone(scratch, make):
    make()
    before = tree(".")
    assert "no file of tokens" in (refusal_of(lambda: tokens(5)) or "")
    assert tree(".") == before


def test_tokens_replace_when_asked(scratch):
    tokens(3)
    assert "give --replace" in refusal_of(lambda: tokens(5, replace=False))
