"""What a capture finds out by samples that it draws does not depend on the draw: for every length of a
sample."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F

from stagecraft_capture.batch import Batch, Field
from stagecraft_capture.errors import CaptureError
from stagecraft_capture.losses import units_of
from stagecraft_capture.sizes import RUN

torch.set_num_threads(1)
ATEN = torch.ops.aten


def found(fields, targets_of, ignore=-100, reduction=1, op=ATEN.cross_entropy_loss.default):
    """Of a loss against `targets_of` a batch, without a capture: its one operator and the value of its
    targets."""
    graph = torch.fx.Graph()
    output, target = graph.placeholder("output"), graph.placeholder("target")
    weight_first = (None,)
    node = graph.call_function(op, (output, target, *weight_first, reduction, ignore))
    batch = Batch(fields)
    try:
        return units_of(
            SimpleNamespace(nodes=[node], outputs=[node]),
            set(),
            lambda given: {target: targets_of(given)},
            batch.at(RUN),
        )
    except CaptureError as error:
        return str(error)


def shifted(labels):
    """As transformers does: the last position has no next token."""
    return F.pad(labels, (0, 1), value=-100)[..., 1:]


def test_units():
    for length in range(1, 129):
        x, tokens = Field("x", [length], torch.float32), Field("input_ids", [length], below=65)
        mask = Field("attention_mask", [length], lengths=True)
        label, labels = (
            Field("targets", [], below=5, ignore=-100),
            Field("labels", [length], below=65, ignore=-100),
        )
        plain = Field("labels", [length], below=5)  # of --field
        grid = Field("labels", [3, length], below=5, ignore=-100)
        for name, fields, targets_of, ignore, expected in (
            (
                "a class per sample",
                [x, label],
                lambda b: b["targets"].flatten(),
                -100,
                {"field": "targets", "ignore": -100},
            ),
            (
                "a class per sample of tokens",
                [tokens, label],
                lambda b: b["targets"].flatten(),
                -100,
                {"field": "targets", "ignore": -100},
            ),
            (
                "beside a mask",
                [tokens, mask, label],
                lambda b: b["targets"],
                -100,
                {"field": "targets", "ignore": -100},
            ),
            (
                "a class per position",
                [tokens, mask, labels],
                lambda b: b["labels"].flatten(),
                -100,
                {"field": "labels", "ignore": -100},
            ),
            ("of the user's", [x, plain], lambda b: b["labels"], -100, {"field": "labels", "ignore": -100}),
            (
                "where class 0 does not count",
                [x, plain],
                lambda b: b["labels"],
                0,
                {"field": "labels", "ignore": 0},
            ),
            (
                "where class 1 does not count",
                [x, plain],
                lambda b: b["labels"],
                1,
                {"field": "labels", "ignore": 1},
            ),
            ("of a grid", [x, grid], lambda b: b["labels"], -100, {"field": "labels", "ignore": -100}),
            (
                "of tokens without any that do not count",
                [tokens],
                lambda b: b["input_ids"].clamp(min=0) % 3,
                -100,
                None,
            ),
        ):
            units = found(fields, targets_of, ignore)
            assert units == (expected, "mean"), f"{name}, {length}: {units}"
        if length > 1:
            for name, targets_of in (
                ("shifted", lambda b: shifted(b["labels"]).flatten()),
                ("cut", lambda b: b["labels"][..., 1:].flatten()),
            ):
                units = found([tokens, mask, labels], targets_of)
                assert units == (
                    {"field": "labels", "ignore": -100, "from": 1},
                    "mean",
                ), f"{name}, {length}: {units}"
        assert found([x, label], lambda b: b["targets"], reduction=2) == (None, "sum")
        if length > 3:
            of_both = found(
                [tokens, mask, labels], lambda b: b["labels"].masked_fill(b["attention_mask"] == 0, -100)
            )
            assert "no field of the batch tells" in of_both, of_both
    assert found([x, Field("targets", [4], torch.float32)], lambda b: b["targets"]) == (
        None,
        "mean",
    ), "probabilities of classes"
    # Whatever a name has in it: no other operator counts labels.
    for op in (
        ATEN.poisson_nll_loss.default,
        ATEN.mse_loss.default,
        ATEN.nll_loss_forward.default,
        ATEN.multilabel_margin_loss.default,
    ):
        node = torch.fx.Graph().call_function(op, ())
        assert units_of(SimpleNamespace(nodes=[node], outputs=[node]), set(), None, {}) == (None, "mean"), op


def test_labels_that_count():
    """In no micro-batch, and in no sample behind its first label, do all labels count for nothing."""
    for length in range(1, 129):
        for shape in ([], [length], [2, length]):
            labels = Batch(
                [Field("x", [length], torch.float32), Field("labels", shape, below=7, ignore=-100)]
            ).drawn["labels"]
            assert labels[:1].ne(-100).any() and labels.min() >= -100 and labels.max() < 7, (shape, labels)
            if length > 1 and shape:
                assert (labels[..., 1:].flatten(1) != -100).any(1).all(), (shape, labels)
            if length > 2:
                assert (labels == -100).any(), "some do not count"
