"""Every refusal of stagecraft-capture says what to do: a sweep over all messages of the package, as they
stand in its source. So a message in PyTorch's words has a remedy beside them."""

import ast
import re
from pathlib import Path

import pytest

from places import SOURCE

PACKAGE = Path(f"{SOURCE}/python/stagecraft_capture")
REFUSALS = {"CaptureError", "NotEqualError"}

VERBS = """add ask call choose clone compute convert cut decide do draw give hold install keep leave let make
    mend name pad pip put read register remove report return run say set sum take train use write"""
# A remedy begins behind a mark, or behind "or" and "and"; so does what the writer could not know to be one, a
# text made elsewhere (…).
REMEDY = re.compile(
    rf"(?:^|[:;,(…]|\bor\b|\band\b)\s*(?:{'|'.join(VERBS.split())})\b|--allow-inexact writes|-m pip install"
)
# What was expected, or what there is to choose from, is one, too.
CHOICE = re.compile(
    r"\bexpected |\bit has …|\b(?:near ones|there|parameters) are …|\bnone of …|\btakes …|\bbe one of …"
)


def names_in(tree):
    """What a module gives a name that may be text: constants and functions."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found.update((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = node
    return found


def everything_named():
    found = {}
    for path in sorted(PACKAGE.glob("*.py")):
        found.update(names_in(ast.parse(path.read_text())))
    return found


def text_of(node, named, depth=2):
    """All that a message may say, in the source's order. `…` stands for what only a run knows."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "…"
    if isinstance(node, ast.FunctionDef):  # what it returns
        made = [part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value]
        return " ".join(text_of(value, named, depth) for value in made)
    if isinstance(node, (ast.Name, ast.Call)):
        name = node.id if isinstance(node, ast.Name) else getattr(node.func, "id", "")
        return text_of(named[name], named, depth - 1) if depth and name in named else "…"
    if isinstance(node, ast.Subscript):  # one of a table
        return text_of(node.value, named, depth)
    if isinstance(node, ast.Dict):
        return " ".join(text_of(value, named, depth) for value in node.values)
    if isinstance(node, (ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.IfExp, ast.BoolOp)):
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        if isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        return "".join(text_of(part, named, depth) for part in parts)
    return "…"


def messages():
    named = everything_named()
    for path in sorted(PACKAGE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in REFUSALS:
                yield f"{path.name}:{node.lineno}", text_of(node.args[0], named)


def has_remedy(text):
    return bool(REMEDY.search(text) or CHOICE.search(text))


# Another refusal, with a place before it.
PASSED_ON = re.compile(r"(?:module …|the model itself|[…:, ])*")


def test_every_refusal_says_what_to_do():
    found = list(messages())
    assert len(found) > 90, f"{len(found)} messages found: does the package raise another class?"
    without = [
        f"{at}: {text}" for at, text in found if not has_remedy(text) and not PASSED_ON.fullmatch(text)
    ]
    assert not without, "\n".join(["these say what happened and not what to do:", *without])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("…: the model fails: …", False),
        ("the loss has no gradient", False),
        ("a given loss is no function; it reads the makers' names", False),
        ("…: the model fails: …; mend it there", True),
        ("--input …: expected sizes of one sample", True),
    ],
)
def test_the_sweep_itself(text, expected):
    assert has_remedy(text) == expected
