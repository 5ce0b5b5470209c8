"""What stagecraft-capture makes of texts, names and numbers, without a capture."""

import argparse
import collections
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors", reason="scripts/setup.sh --models installs it")

from places import ENVIRONMENT
from stagecraft_capture.arguments import number_from, parse, positive_numbers
from stagecraft_capture.batch import parse_field, sizes_in
from stagecraft_capture.cut import common_path
from stagecraft_capture.errors import CaptureError
from stagecraft_capture.graph_text import affine, fit, fit_type
from stagecraft_capture.into_folder import some
from stagecraft_capture.keep import BUDGET
from stagecraft_capture.layers import fits
from stagecraft_capture.multiply_adds import of_product, sizes_at
from stagecraft_capture.precision import NARROW
from stagecraft_capture.reach import Snapshot
from stagecraft_capture.small_twin import small_config
from stagecraft_capture.table import repeats_at, shortened, size
from stagecraft_tools.console import first_line
from stagecraft_tools.refusal import Refused
from stagecraft_tools.torch_versions import VERSIONS, minor, version_like


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3 GiB")]
)
def test_size(count, text):
    assert size(count) == text


def test_size_beyond_the_largest_unit():
    assert size(5 << 40) == "5120 GiB"


@pytest.mark.parametrize(
    ("count", "text"), [(1, "a0"), (5, "a0, a1, a2, a3, a4"), (7, "a0, a1, a2, a3, a4 and 2 more")]
)
def test_some(count, text):
    assert some([f"a{i}" for i in range(count)]) == text


@pytest.mark.parametrize(
    ("least", "text"), [(1, "0"), (1, "-1"), (0, "x"), (1, ""), (0, "1.5"), (0, str(2**64))]
)
def test_no_number(least, text):
    with pytest.raises(argparse.ArgumentTypeError):
        number_from(least, text)


def test_numbers():
    assert number_from(0, "0") == 0
    assert positive_numbers("4,8,4") == [4, 8]


@pytest.mark.parametrize(("option", "known"), [("--keep", BUDGET), ("--dtype", {"float32", *NARROW})])
def test_choices_are_those_that_are_known(option, known):
    """The parser imports nothing that knows them."""
    for choice in known:
        parse(["x.py:x", option, choice, "-o", "x"])
    with pytest.raises(Refused) as refused:
        parse(["x.py:x", option, "none", "-o", "x"])
    assert set(str(refused.value).partition("one of ")[2].partition(" (")[0].split(", ")) == set(known)


def test_wrong_words_are_told_before_torch_is_imported():
    code = (
        "import sys; from stagecraft_capture.command import command; print(command(), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "x.py:x", "--keep", "no"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.stdout == "2 False\n"
    assert '--keep: "no" is not one of' in done.stderr


def test_equal_blocks_are_told_once():
    rows = (
        [("embed", "1")]
        + [(f"h.{i}.{part}", part) for i in range(6) for part in ("attn", "mlp")]
        + [("head", "2")]
    )
    assert repeats_at(rows, 1) == (2, 6)
    assert repeats_at(rows, 0) == (1, 1)
    short = shortened(rows)
    assert [row[0] for row in short if len(row) > 1] == ["embed", "h.0.attn", "h.0.mlp", "head"]
    assert [row[0] for row in short if len(row) == 1] == ["... 5 more of these 2, to h.5.mlp"]


@pytest.mark.parametrize(
    ("text", "name", "shape", "below"),
    [("mask=bool[128]", "mask", [128], 2), ("labels=i64[3,4]<10", "labels", [3, 4], 10)],
)
def test_fields(text, name, shape, below):
    field = parse_field(text)
    assert (field.name, field.shape, field.below) == (name, shape, below)


@pytest.mark.parametrize(
    "text", ["mask", "=i64[2]", "mask=i65[4]", "mask=i64[4", "mask=i64[0]", "mask=i64[4]<0"]
)
def test_no_fields(text):
    with pytest.raises(CaptureError, match="--field"):
        parse_field(text)


@pytest.mark.parametrize("text", ["", "4,x", "8,-1", "0"])
def test_no_sizes(text):
    with pytest.raises(CaptureError, match="expected sizes"):
        sizes_in(text)


@pytest.mark.parametrize(
    ("path", "pattern", "same"),
    [
        ("wrapped.model.layers.3", "model.layers.*", True),
        ("wrapped.model.layers.3.mlp", "model.layers.*", False),
        ("wrapped.lm_head", "lm_*", True),
        ("wrapped.model", "*.model", False),
    ],
)
def test_patterns_of_layers(path, pattern, same):
    assert fits(path, pattern, "wrapped.") is same


@pytest.mark.parametrize(
    ("paths", "path"),
    [(["a.b.c", "a.b.d"], "a.b"), (["a.b"], "a.b"), (["a", "b"], ""), (["a.bc", "a.bd"], "a")],
)
def test_common_path(paths, path):
    assert common_path(paths) == path


def test_sizes_of_types():
    assert sizes_at("f32[16*b+1,64]", 3) == [49, 64]
    assert of_product([2, 3, 4], [4, 5]) == 2 * 3 * 4 * 5


@pytest.mark.parametrize(
    ("at", "line"), [({2: 5, 3: 7, 8: 17}, (2, 1)), ({2: 4, 3: 4, 8: 4}, (0, 4)), ({2: 4, 3: 9, 8: 64}, None)]
)
def test_affine(at, line):
    assert affine(at) == line


def test_fit():
    assert fit_type({2: "%3 f32[32,64]", 3: "%3 f32[48,64]"}) == "%3 f32[16*b,64]"
    with pytest.raises(ValueError, match=r".*"):
        fit({2: [1], 3: [1, 2]})


def test_small_config():
    assert small_config({"vocab_size": 9}) is None, "no heads, no twin"
    large = {
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "vocab_size": 9,
    }
    small = small_config(large)
    assert small["num_hidden_layers"] == 2
    assert small["num_attention_heads"] // small["num_key_value_heads"] == 4
    assert small["vocab_size"] <= 256


def test_versions():
    newest = VERSIONS[0]
    assert version_like(newest.torch) is newest
    assert version_like(f"{minor(newest.torch)}.99") is newest
    assert version_like("1.0.0") is None
    assert version_like(None) is None


def test_first_line():
    assert first_line(ValueError("one.\ntwo")) == "ValueError: one"
    assert first_line(KeyError()) == "KeyError"


def test_a_dictionary_that_makes_things_is_remembered_without_making_any():
    class Makes(collections.OrderedDict):  # as ACT2FN of transformers
        def __getitem__(self, key):
            raise AssertionError(f"{key} is made")

    module = torch.nn.Identity()
    module.made_by = Makes(gelu=int, silu=float)
    before = Snapshot(module)
    dict.__setitem__(module.made_by, "gelu", str)
    before.restore()
    assert list(module.made_by.items()) == [("gelu", int), ("silu", float)]


def test_most_of_the_work_in_one_layer_is_said():
    from types import SimpleNamespace

    from stagecraft_capture.table import lopsided

    def layers(*work, steps=20):
        return [
            SimpleNamespace(name=f"l{i}", graph={"multiply_adds": w, "evaluate": [None] * steps})
            for i, w in enumerate(work)
        ]

    assert lopsided(layers(1, 91, 8)).startswith("layer l1 has 91 % of the multiply-adds")
    assert "--layers narrow:8" in lopsided(layers(10))
    assert not lopsided(layers(50, 50)) and not lopsided(layers(0, 0))
    assert not lopsided(layers(1, 99, steps=3))  # one product: nothing to cut
