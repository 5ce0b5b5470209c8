"""A pipeline that goes on from a run directory: one of `Pipeline.save`, or of `stagecraft train`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagecraft_planner.nearest import keywords_checked

from . import checks
from .captured import ModelFolder
from .errors import InputError
from .fields import TARGETS, Reader
from .launch import ranks_of_this_start
from .pipeline import Pipeline, plan_file
from .prepared import rates_of

if TYPE_CHECKING:
    import torch

    from .pipeline import Rate

TYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16"}


@keywords_checked
def load(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    learning_rate: Rate | None = None,
    config: Mapping[str, Any] | None = None,
) -> Pipeline:
    """The pipeline of a run directory, as it was at a checkpoint: its model, its plan, its weights, its
    optimizer with all state. The module's Python is not needed. Batches come from the caller from now on; a
    run of `stagecraft train` read them in its own order.

    path: a run directory, of `Pipeline.save` or of `stagecraft train` with a captured model.
    step: of the checkpoint; None: the newest.
    learning_rate: a function of the step, or a scheduler of torch's as it was before the first step, as for
        `pipeline()`; None: as the run had it, from its config or from `set_lr`.
    config: keys that go before the run's; a `scheduler` goes before the rates that the run was given, too.

    Throws InputError where there is no such run or checkpoint, and where a function gave the run its learning
    rate, which no file has, and `learning_rate` is None.
    """
    ranks = ranks_of_this_start()
    with ranks.closed_by_an_error():
        run = ranks.together(lambda: _kept(path, step, learning_rate, checks.keys_of_a_config(config)))
        with plan_file(json.dumps(run.plan), os.path.join(path, "plan.json")) as place:
            run.config.setdefault("pipeline", {})["plan"] = place
            made = Pipeline(
                run.config, run.reader, {}, run.folder, ranks, checkpoint=run.checkpoint, rates=run.rates
            )
    made._others = run.untrained
    for second, first in run.same_as.items():
        if first in made._aliases:
            made._aliases.setdefault(second, made._aliases[first])
        elif first in made._others:
            made._others.setdefault(second, made._others[first])
    return made


@dataclass(frozen=True)
class _Run:
    """A run directory as a pipeline goes on from it."""

    config: dict[str, Any]
    plan: dict[str, Any]
    reader: Reader
    folder: ModelFolder
    checkpoint: str
    rates: Callable[[int], float] | None
    untrained: dict[str, torch.Tensor]
    same_as: Mapping[str, str]


def _kept(
    path: str | os.PathLike[str], step: int | None, learning_rate: Rate | None, config: Mapping[str, Any]
) -> _Run:
    root = Path(os.path.abspath(checks.path("load", path)))
    if (root / "manifest.json").is_file() and root.parent.name == "checkpoints":
        raise InputError(
            f"{root}: is a checkpoint: give its run directory, {root.parent.parent}, and step= for one"
            " that is not the newest"
        )
    found = _read(root / "config.json")
    if found["model"].get("family") != "captured":
        raise InputError(
            f"{root}: its model is of the family {found['model'].get('family')!r}, and only captured modules"
            " are stepped from Python"
        )
    kept = root / "model"  # as Pipeline.save leaves it, wherever the directory has come to since
    folder = ModelFolder(str(kept) if kept.is_dir() else os.path.abspath(found["model"]["path"]), "")
    found["model"]["path"] = folder.path
    manifest = _read(Path(folder.path, "manifest.json"))
    if found["data"].get("type") != "given":
        found["data"] = _data_of(manifest, found["data"])
        found["model"].pop("fields", None)
    # The model's fingerprint has its data in it, which come from elsewhere now.
    plan = _read(root / "plan.json") | {"model_fingerprint": ""}
    found.pop("validation", None)
    found.update(config)
    names = [field["name"] for field in found["data"]["fields"]]
    its_input = found["data"]["inputs"]
    ordered = (its_input, *(name for name in names if name != its_input))
    pairs = ordered[1:] in ((), (TARGETS,))
    checkpoint = _checkpoint(root, step)
    if learning_rate is None and "scheduler" not in config:
        _require_rates(checkpoint)
    return _Run(
        config=found,
        plan=plan,
        reader=Reader(its_input, ordered, pairs),
        folder=folder,
        checkpoint=checkpoint,
        rates=rates_of(learning_rate, None, None)[0],
        untrained=_untrained(folder.path, manifest),
        same_as=manifest.get("same_as", {}),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"{path}: is missing: expected a run directory, as Pipeline.save writes it"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected an object")
    return found


def _require_rates(checkpoint: str) -> None:
    """What `set_lr` said is in the config."""
    given = _read(Path(checkpoint, "manifest.json")).get("given_rate") or {}
    if given.get("each_step"):
        raise InputError(
            f"{checkpoint}: a function gave the run its learning rate"
            + (f", {given['lr']} in the last step" if "lr" in given else "")
            + ", and no file has that function: give learning_rate=, or for the optimizer's own"
            ' config={"scheduler": {"type": "constant"}}'
        )


def _checkpoint(root: Path, step: int | None) -> str:
    folders = sorted((root / "checkpoints").glob("step-" + "[0-9]" * 8))
    whole = [folder for folder in folders if (folder / "manifest.json").is_file()]
    if step is not None:
        whole = [folder for folder in whole if int(folder.name.removeprefix("step-")) == step]
    if not whole:
        of_step = "" if step is None else f" of step {step}"
        raise InputError(f"{root}: has no whole checkpoint{of_step}")
    return str(whole[-1])


def _data_of(manifest: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """What the model reads of a batch, as its folder says it."""
    fields = []
    its_input = str(data.get("inputs", "inputs"))
    for name, about in manifest.get("fields", {}).items():
        fields.append(_field(name, about["type"]))
    if its_input not in [field["name"] for field in fields]:
        fields.insert(0, _field(its_input, manifest["input"]))
    return {"type": "given", "inputs": its_input, "fields": fields, "shuffle": False}


def _field(name: str, type_text: str) -> dict[str, Any]:
    """`type_text` as in f32[b,3,32,32]."""
    read = re.fullmatch(r"(\w+)\[b((?:,\d+)*)\]", type_text)
    if read is None:
        raise InputError(f"the model reads {name} as {type_text}, which is no batch of samples")
    shape = [int(size) for size in read[2].split(",") if size]
    return {"name": name, "shape": shape, "dtype": TYPES.get(read[1], "int64")}


def _untrained(folder: str, manifest: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the module has and no layer holds, buffers that constants were made of among it."""
    names = set(manifest.get("untrained", {}))
    if not names:
        return {}
    from safetensors import safe_open

    found: dict[str, torch.Tensor] = {}
    for file in Path(folder).glob("*.safetensors"):  # constants.safetensors has those buffers
        with safe_open(file, framework="pt") as stored:
            found |= {name: stored.get_tensor(name) for name in names.intersection(stored.keys())}
    return found
