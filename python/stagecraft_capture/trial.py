"""The engine's word on what was captured: one step of a run, before the folder takes its place. So what is
written trains."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from stagecraft_planner.binary import alone
from stagecraft_tools.engine_program import engine

from .errors import CaptureError
from .folder import save_file
from .precision import IN_A_CONFIG

if TYPE_CHECKING:
    from .aliases import Json
    from .batch import Batch

MICRO_BATCH, SAMPLES = 4, 8
REFUSED = 3  # the engine's exit code for what this machine cannot do
LONGEST = 900  # seconds; a run that hangs ends by its own bounds long before


def usual_loss(output: str) -> tuple[Json, torch.Tensor] | None:
    """A loss in a config, and its targets, for a model that brings none; nothing where no built-in one reads
    such an output, as f32[b,10]."""
    found = re.fullmatch(r"(?:f32|f64|bf16|f16)\[b((?:,\d+)+)\]", output)
    if found is None:
        return None
    sizes = [int(size) for size in found[1].split(",")[1:]]
    return {"loss": {"type": "mse"}}, torch.zeros(SAMPLES, *sizes)


def config(folder: str, data: str, batch: Batch, layers: int, dtype: str) -> Json:
    return {
        "model": {"family": "captured", "path": folder},
        "data": {"type": "arrays", "path": data, "inputs": batch.input, "shuffle": False},
        "optimizer": {"type": "SGD", "params": {"lr": 1e-6}},
        "train_batch_size": SAMPLES,
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "train_steps": 1,
        "threads_per_rank": 1,
        "profiler": {"repeats": 1, "warmup_ms": 0},
        "pipeline": {"schedule": "1f1b", "stages": min(layers, 2)},
        "comms": {"backend": "local"},
        "on_overflow": "skip",  # drawn numbers may be none that the model is for
        **IN_A_CONFIG[dtype],
    }


def said_by(done: subprocess.CompletedProcess[str]) -> str:
    """Its error, without the program's name."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("stagecraft: ")]
    if lines:
        return lines[-1].removeprefix("stagecraft: ")
    return f"it ended by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"


def try_in_engine(
    folder: str, batch: Batch, layers: int, dtype: str, loss: tuple[Json, torch.Tensor] | None
) -> str:
    """One step of the engine with the model in `folder`: the line that says so, or why nothing was tried.
    Throws CaptureError with the engine's words where it refuses. `loss`: for a model that brings none."""
    program = engine()
    if program is None:
        return "NOT tried in the engine: there is no stagecraft here (STAGECRAFT names it)"
    if save_file is None:
        return "NOT tried in the engine: safetensors is missing"
    with tempfile.TemporaryDirectory(prefix="stagecraft-trial-") as place:
        run = config(folder, f"{place}/data.safetensors", batch, layers, dtype)
        run["run_dir"] = f"{place}/run"
        arrays = batch.at(SAMPLES)
        if loss is not None:
            run |= loss[0]
            arrays["targets"] = loss[1]
        save_file({name: t.contiguous() for name, t in arrays.items()}, f"{place}/data.safetensors")
        Path(f"{place}/run.json").write_text(json.dumps(run), encoding="utf-8")
        try:
            done = subprocess.run(
                [program, "train", f"{place}/run.json"],
                capture_output=True,
                text=True,
                check=False,
                timeout=LONGEST,
                env=alone(),
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            return f"NOT tried in the engine: {program}: {error.strerror}"
        except subprocess.TimeoutExpired:
            return f"NOT tried in the engine: a step takes longer than {LONGEST} s here"
        stages = run["pipeline"]["stages"]
        if done.returncode == REFUSED:
            return f"NOT tried in the engine: {said_by(done)}"
        if done.returncode:
            raise CaptureError(
                "the engine does not train what was captured, so nothing is written, or give --no-trial:"
                f" {said_by(done).replace(f'{place}/', '').replace(f'{folder}/', '')}"
            )
        found = json.loads(Path(f"{place}/run/metrics.jsonl").read_text().splitlines()[0])["loss"]
    where = f"{stages} stages" if stages > 1 else "one stage"
    loss_of_step = "that is not finite" if found is None else f"{found:.6g}"
    return f"tried in the engine: a step of 1f1b on {where}, loss {loss_of_step}"
