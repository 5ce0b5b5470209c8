"""Writes the model folder, whole or not at all."""

import hashlib
import json
import os
import shutil
import tempfile

import torch

from .errors import CaptureError
from .graph_text import type_text

try:
    from safetensors.torch import save_file
except ImportError:
    save_file = None


def graph_bytes(graph):
    return (json.dumps(graph, separators=(", ", ": ")) + "\n").encode()


def graph_name(graph):
    return hashlib.sha256(graph_bytes(graph)).hexdigest()[:16]


def write_folder(path, name, layers, sizes, checked, weights_stored=True):
    """Replaces `path`, which must not exist or be such a folder. `checked` may be None."""
    if save_file is None:
        raise CaptureError("weights are written with safetensors, which is missing: scripts/setup.sh --models, or pip install safetensors")
    tensors, manifest_layers = {}, []
    parent = os.path.dirname(os.path.abspath(path))
    made = tempfile.mkdtemp(prefix=".capture-", dir=parent)
    try:
        os.mkdir(f"{made}/graphs")
        for layer in layers:
            graph = graph_name(layer.graph)
            with open(f"{made}/graphs/{graph}.json", "wb") as file:
                file.write(graph_bytes(layer.graph))
            names = layer.tensors.names
            manifest_layers.append({"name": layer.name, "graph": graph, "parameters": names["p"], "buffers": names["u"], "constants": names["c"]})
            tensors.update(layer.tensors.values)
        used = {n for entry in manifest_layers for kind in ("parameters", "buffers", "constants") for n in entry[kind]}
        types = {n: type_text(t) for n, t in tensors.items() if n in used}
        tensors = {n: t.detach().contiguous().clone() for n, t in tensors.items() if n in used and (weights_stored or n.startswith("constant/"))}
        manifest = {
            "format": 1,
            "name": name,
            "torch": torch.__version__.split("+")[0],
            "sizes": list(sizes),
            "input": layers[0].graph["input"],
            "output": layers[-1].graph["output"],
            "layers": manifest_layers,
            "weights": types,
            "weights_stored": weights_stored,
            "checked": checked,
        }
        with open(f"{made}/manifest.json", "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.write("\n")
        save_file(tensors, f"{made}/weights.safetensors", metadata={"format": "pt"})
        os.chmod(f"{made}/weights.safetensors", 0o644)
        os.chmod(made, 0o755)
        if os.path.isdir(path):
            shutil.rmtree(path)
        os.rename(made, path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
