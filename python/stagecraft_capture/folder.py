"""The files of a model folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .errors import CaptureError, missing
from .graph_text import type_text

if TYPE_CHECKING:
    from .aliases import Json
    from .batch import Batch
    from .capture import Layer, Model
    from .weights import State


try:
    from safetensors.torch import save_file
except ImportError:
    save_file = None


def graph_bytes(graph: Json) -> bytes:
    return (json.dumps(graph, separators=(", ", ": "), allow_nan=False) + "\n").encode()


def graph_name(graph: Json) -> str:
    return hashlib.sha256(graph_bytes(graph)).hexdigest()[:16]


def names_between(layers: list[Layer]) -> dict[int, tuple[list[str], list[str]]]:
    """Of each layer the names of the values that it reads and makes, where anywhere several go on: a layer's
    only one has the layer's name."""
    if all(len(layer.reads) == 1 and len(layer.makes) == 1 for layer in layers):
        return {}

    def first_made(i: int) -> list[tuple[int, int]]:
        return [value for value in layers[i].makes if value[0] == i]

    def name(value: tuple[int, int]) -> str:
        return (
            "input"
            if value[0] < 0
            else layers[value[0]].name + (f":{value[1]}" if len(first_made(value[0])) > 1 else "")
        )

    return {id(layer): ([name(v) for v in layer.reads], [name(v) for v in layer.makes]) for layer in layers}


def loss_of(model: Model) -> Json | None:
    """As manifest.json has it."""
    if model.loss is None:
        return None
    names = model.loss.tensors.names
    about: Json = {"graph": graph_name(model.loss.graph), "fields": names["f"], "constants": names["c"]}
    about |= {"terms": model.terms} if model.terms else {}
    about |= {"reduction": "sum"} if model.reduction == "sum" else {}
    about |= {"of_whole_batch": True} if model.reduction == "whole" else {}
    return about | ({"units": model.units} if model.units else {})


@dataclass
class Captured:
    """What a manifest says."""

    model: Model
    batch: Batch
    sizes: list[int]  # of micro-batches, that were compared with PyTorch
    checked: Json | None
    state: State


def write_graphs(folder: str, model: Model) -> None:
    for layer in model.parts:
        with open(f"{folder}/graphs/{graph_name(layer.graph)}.json", "wb") as file:
            file.write(graph_bytes(layer.graph))


def layers_of(model: Model) -> list[Json]:
    """As manifest.json has them."""
    between, entries = names_between(model.layers), []
    for layer in model.layers:
        names = layer.tensors.names
        entry = {
            "name": layer.name,
            "graph": graph_name(layer.graph),
            "parameters": names["p"],
            "buffers": names["u"],
            "constants": names["c"],
        }
        entry |= {"in": between[id(layer)][0], "out": between[id(layer)][1]} if id(layer) in between else {}
        entries.append(entry | ({"fields": names["f"]} if names["f"] else {}))
    return entries


def manifest_of(name: str, captured: Captured, weights_stored: bool, shorter: list[int]) -> Json:
    model, state = captured.model, captured.state
    read = {f for layer in model.parts for f in layer.tensors.names["f"]}
    fields = {f: captured.batch.field(f).manifest(type_text) for f in captured.batch.fields if f in read}
    return {
        "format": 2,
        "name": name,
        "torch": torch.__version__.split("+")[0],
        "sizes": list(captured.sizes),
        "input": model.layers[0].graph["inputs"][0],
        "output": model.layers[-1].graph["outputs"][0],
        **({"fields": fields} if fields else {}),
        "layers": layers_of(model),
        **({"loss": loss_of(model)} if model.loss else {}),
        "weights": state.types,
        **{
            key: value
            for key, value in (
                ("untrained", state.untrained),
                ("same_as", state.same_as),
                ("prefix", state.prefix),
                ("memory_orders", state.orders),
                ("parameter_order", state.in_order),
            )
            if value
        },
        **({} if weights_stored else {"weights_stored": False}),
        **({"shorter": shorter} if shorter else {}),
        "checked": captured.checked and {k: v for k, v in captured.checked.items() if k != "unequal"},
    }


def write_manifest(path: str, manifest: Json) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, allow_nan=False)
        file.write("\n")


def write_folder(
    made: str,
    name: str,
    whole: Captured,
    shorter: dict[int, Captured] | None = None,
    hugging_face: Any | None = None,
    weights_stored: bool = True,
    more: Callable[[str], None] = lambda folder: None,
) -> None:
    """Into the empty folder `made`. `whole`: Captured; `shorter`: the same of shorter samples, by their
    length; `hugging_face`: writes its files into a folder; `more`: further ones into the model folder."""
    if save_file is None:
        raise CaptureError(missing("safetensors"))
    shorter = dict(sorted((shorter or {}).items()))
    os.mkdir(f"{made}/graphs")
    for captured in (whole, *shorter.values()):
        write_graphs(made, captured.model)
    write_manifest(f"{made}/manifest.json", manifest_of(name, whole, weights_stored, list(shorter)))
    for length, captured in shorter.items():
        write_manifest(f"{made}/manifest.{length}.json", manifest_of(name, captured, weights_stored, []))
    fixed = {n: t for captured in (whole, *shorter.values()) for n, t in captured.state.fixed.items()}
    for file, tensors in (("weights", whole.state.weights if weights_stored else {}), ("constants", fixed)):
        if tensors:
            save_file(
                {n: t.detach().contiguous().clone() for n, t in tensors.items()},
                f"{made}/{file}.safetensors",
                metadata={"format": "pt"},
            )
            os.chmod(f"{made}/{file}.safetensors", 0o644)
    if hugging_face:
        os.mkdir(f"{made}/hugging_face")
        hugging_face(f"{made}/hugging_face")
    more(made)
