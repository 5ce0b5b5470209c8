"""Captures of tests, held against eager."""

import pytest
import torch

from stagecraft_capture.batch import Batch, Field
from stagecraft_capture.capture import capture
from stagecraft_capture.check import check
from stagecraft_capture.errors import CaptureError
from stagecraft_capture.folder import graph_name

torch.set_num_threads(1)
nn = torch.nn
EQUAL = 0  # no difference at all


def numbers(*shape, name="x", more=()):
    return Batch([Field(name, list(shape), torch.float32), *more])


def tokens(vocabulary, count=12, more=()):
    return Batch([Field("input_ids", [count], below=vocabulary), *more])


def equal(name, module, batch, layers_at_least, graphs_at_most=None, **how):
    return equal_model(name, module, batch, layers_at_least, graphs_at_most, **how).layers


def equal_model(name, module, batch, layers_at_least, graphs_at_most=None, **how):
    model = capture(module, batch, **how)
    layers = model.layers
    checked = check(module, model, batch.at(4))  # a size that no graph was made at
    graphs = len({graph_name(layer.graph) for layer in layers})
    print(f"{name}: {len(layers)} layers, {graphs} graphs, {checked}")
    assert checked["output"] == checked["evaluation"] == checked.get("loss", "equal") == "equal", name
    assert ("loss" in checked) == how.get("has_loss", False), name
    assert checked["gradients"] == checked["equal"] > 0, name
    assert checked["buffers"] == checked["buffers_equal"] and checked["worst"] == EQUAL, name
    assert len(layers) >= layers_at_least, name
    assert graphs_at_most is None or graphs <= graphs_at_most, name
    return model


def refused(name, module, batch, *texts, has_loss=False):
    with pytest.raises(CaptureError) as error:
        capture(module, batch, has_loss)
    for text in texts:
        assert text in str(error.value), name
