"""Writes the model folder, whole or not at all."""

import hashlib
import json
import os
import shutil
import tempfile

import torch

from .errors import CaptureError, missing
from .graph_text import type_text

try:
    from safetensors.torch import save_file
except ImportError:
    save_file = None


def graph_bytes(graph):
    return (json.dumps(graph, separators=(", ", ": ")) + "\n").encode()


def graph_name(graph):
    return hashlib.sha256(graph_bytes(graph)).hexdigest()[:16]


def names_between(layers):
    """Of each layer the names of the values that it reads and makes, where anywhere several go on: a layer's only one has the layer's name."""
    if all(len(layer.reads) == 1 and len(layer.makes) == 1 for layer in layers):
        return {}
    first_made = lambda i: [value for value in layers[i].makes if value[0] == i]
    name = lambda value: "input" if value[0] < 0 else layers[value[0]].name + (f":{value[1]}" if len(first_made(value[0])) > 1 else "")
    return {id(layer): ([name(v) for v in layer.reads], [name(v) for v in layer.makes]) for layer in layers}


def loss_of(model):
    """As manifest.json has it."""
    names = model.loss.tensors.names
    about = {"graph": graph_name(model.loss.graph), "fields": names["f"], "constants": names["c"]}
    about |= {"reduction": "sum"} if model.reduction == "sum" else {}
    return about | ({"units": model.units} if model.units else {})


def write_folder(path, name, model, batch, sizes, checked, state, hugging_face=None, weights_stored=True, more=lambda folder: None):
    """Replaces `path`, which must not exist or be such a folder. `state`: of weights.py; `hugging_face`: writes its files into a folder;
    `more`: further ones into the model folder. `checked` may be None."""
    if save_file is None:
        raise CaptureError(missing("safetensors"))
    manifest_layers = []
    parent = os.path.dirname(os.path.abspath(path))
    made = tempfile.mkdtemp(prefix=".capture-", dir=parent)
    try:
        os.mkdir(f"{made}/graphs")
        layers, read, between = model.layers, set(), names_between(model.layers)
        for layer in [*layers, *([model.loss] if model.loss else [])]:
            graph, names = graph_name(layer.graph), layer.tensors.names
            with open(f"{made}/graphs/{graph}.json", "wb") as file:
                file.write(graph_bytes(layer.graph))
            read |= set(names["f"])
            entry = {"name": layer.name, "graph": graph, "parameters": names["p"], "buffers": names["u"], "constants": names["c"]}
            entry |= {"in": between[id(layer)][0], "out": between[id(layer)][1]} if id(layer) in between else {}
            manifest_layers.append({**entry, **({"fields": names["f"]} if names["f"] else {})})
        del manifest_layers[len(layers) :]
        fields = {name: batch.field(name).manifest(type_text) for name in batch.fields if name in read}
        manifest = {
            "format": 2,
            "name": name,
            "torch": torch.__version__.split("+")[0],
            "sizes": list(sizes),
            "input": layers[0].graph["inputs"][0],
            "output": layers[-1].graph["outputs"][0],
            **({"fields": fields} if fields else {}),
            "layers": manifest_layers,
            **({"loss": loss_of(model)} if model.loss else {}),
            "weights": state.types,
            **{key: value for key, value in (("untrained", state.untrained), ("same_as", state.same_as), ("prefix", state.prefix)) if value},
            **({} if weights_stored else {"weights_stored": False}),
            "checked": checked,
        }
        with open(f"{made}/manifest.json", "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.write("\n")
        for file, tensors in (("weights", state.weights if weights_stored else {}), ("constants", state.fixed)):
            if tensors:
                save_file({n: t.detach().contiguous().clone() for n, t in tensors.items()}, f"{made}/{file}.safetensors", metadata={"format": "pt"})
                os.chmod(f"{made}/{file}.safetensors", 0o644)
        if hugging_face:
            os.mkdir(f"{made}/hugging_face")
            hugging_face(f"{made}/hugging_face")
        more(made)
        os.chmod(made, 0o755)
        if os.path.isdir(path):
            shutil.rmtree(path)
        os.rename(made, path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
