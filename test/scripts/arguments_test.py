"""The words of the tools' command lines, all of them: what is wrong is one line, with the name that was
meant. And what all tools share: JSON, and launchers."""

import ast
import importlib
import re
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import SOURCE
from stagecraft_tools.arguments import Parser
from stagecraft_tools.console import run
from stagecraft_tools.json_files import read_json
from stagecraft_tools.launchers import SOURCES, require_alone
from stagecraft_tools.refusal import Refused

TOOLS = {
    "capture": "stagecraft_capture.arguments",
    "tokenize": "stagecraft_tokenize.__main__",
    "images": "stagecraft_images.__main__",
    "generate": "stagecraft_generate.command",
    "follow": "stagecraft_follow.command",
}


def parse_of(tool):
    return importlib.import_module(TOOLS[tool]).parse


@pytest.fixture(params=TOOLS)
def parser(request, monkeypatch):
    """The parser of each tool, as it is before it reads words."""
    made = []

    def keep(self, *_):
        made.append(self)
        raise Refused("kept")

    with monkeypatch.context() as patched:
        patched.setattr(Parser, "parse_args", keep)
        with pytest.raises(Refused, match="kept"):
            parse_of(request.param)(["x"])
    return made[0]


def refusal(parser, words):
    with pytest.raises(Refused) as refused:
        parser.parse_args(words)
    assert "\n" not in str(refused.value) and f"(see {parser.prog} --help)" in str(refused.value)
    return str(refused.value)


def options_of(parser):
    return [action for action in parser._actions if action.option_strings and action.dest != "help"]


def test_every_option_that_is_misspelled_is_named(parser):
    for action in options_of(parser):
        name = action.option_strings[-1]
        for wrong in (f"{name}x", "--" + name[2:].replace("-", "_") + "_"):
            assert f'did you mean "{name}"?' in refusal(parser, ["x", wrong, "1"])
    assert "there is no option --zqjw (" in refusal(parser, ["x", "--zqjw=3"])
    assert f"there is no option {name[:-1]}" in refusal(parser, ["x", name[:-1]])  # none is shortened


def test_every_option_that_takes_one_of_some_words_names_them(parser):
    for action in options_of(parser):
        for choice in action.choices or ():
            assert f'did you mean "{choice}"?' in refusal(
                parser, ["x", action.option_strings[-1], f"{choice}_"]
            )


def test_every_option_that_takes_a_number_says_which(parser):
    for action in options_of(parser):
        if action.type is not None:
            assert "expected " in refusal(parser, ["x", action.option_strings[-1], "many"])


def test_what_is_missing_is_named(parser):
    required = ["/".join(action.option_strings) for action in options_of(parser) if action.required]
    assert required
    assert f"{', '.join(required)}: is missing" in refusal(parser, ["x"])


@pytest.mark.parametrize("source", SOURCES, ids=[size for size, _ in SOURCES])
def test_of_several_processes_the_first_refuses_with_words(source, capsys, monkeypatch):
    for size, rank in SOURCES:
        monkeypatch.delenv(size, raising=False)
        monkeypatch.delenv(rank, raising=False)
    require_alone()
    monkeypatch.setenv(source[0], "2")
    require_alone()  # nobody says which of them this is: a batch script, or a name that somebody else uses
    for place in ("0", "1"):
        monkeypatch.setenv(source[1], place)
        with pytest.raises(Refused, match=f"{source[0]}=2.: start it without" if place == "0" else "^$"):
            require_alone()
    monkeypatch.setenv(source[0], "1")
    monkeypatch.setenv(source[1], "0")
    require_alone()
    assert capsys.readouterr().err == ""


def test_launchers_are_those_of_the_command():
    text = (SOURCE / "base" / "launch.cpp").read_text()
    found = re.findall(r'\{Source::Kind::\w+, "(\w+)", "(\w+)"', text)
    assert tuple(found) == SOURCES


def test_whoever_starts_the_command_says_that_it_is_alone():
    """Under torchrun or mpirun it would else take itself for one of their processes."""
    calls = 0
    for file in (SOURCE / "python").glob("stagecraft*/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            named = isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "subprocess.run",
                "subprocess.Popen",
            )
            if named:
                calls += 1
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert given.get("env") == "alone()", f"{file}:{node.lineno}"
    assert calls >= 4


def test_broken_json_is_told_by_its_place(tmp_path):
    for text, said in (
        ("", "line 1, column 1: found the end of the text; expected a value"),
        ('{\n  "a": 1\n  "b": 2\n}', 'line 3, column 3: found """; expected "," or the closing bracket'),
        ('{"a" 1}', 'line 1, column 6: found "1"; expected ":"'),
        ("{a: 1}", 'line 1, column 2: found "a"; expected a key in double quotes'),
        ("{} {}", 'line 1, column 4: found "{"; expected the end of the text'),
        ('{"a": "b', "expected a closing quote"),
    ):
        path = tmp_path / "a.json"
        path.write_text(text)
        with pytest.raises(Refused) as refused:
            read_json(path)
        assert str(refused.value).replace('\\"', '"').startswith(f"{path}: not valid JSON: line ")
        assert said in str(refused.value).replace('\\"', '"')
    path.write_bytes(b"{\xff}")
    with pytest.raises(Refused, match="is no UTF-8 at byte 1"):
        read_json(path)
    path.write_text("[" * 100_000)
    with pytest.raises(Refused, match="nested too deep"):
        read_json(path)


def test_generate_says_where_a_config_is_no_json(tmp_path):
    from stagecraft_generate.command import main

    (tmp_path / "config.json").write_text('{"model_type": llama}')
    with pytest.raises(Refused) as refused:
        main([str(tmp_path), "--prompt", "x"])
    said = 'not valid JSON: line 1, column 16: found "llama"; expected a value'
    assert str(refused.value) == f"{tmp_path}/config.json: {said}"


def test_a_tool_refuses_before_it_begins(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert run("stagecraft-x", lambda: pytest.fail("it began"), "") == 2
    assert capsys.readouterr().err.startswith("stagecraft-x: is the work of one process, but 4 were launched")
    monkeypatch.setenv("RANK", "3")
    assert run("stagecraft-x", lambda: pytest.fail("it began"), "") == 2
    assert capsys.readouterr().err == ""
    assert sys.exc_info() == (None, None, None)
