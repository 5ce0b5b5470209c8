"""Run directories that are kept, so that what an earlier program wrote is still resumed: what they are of,
how they are made, and what is kept beside each (test/data/runs/README.md).

    python3 test/scripts/kept_runs.py            a new generation, of the format that build/ writes
    python3 test/scripts/kept_runs.py NAME...    runs that are new, into the generation of that format
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from places import BUILD, ENVIRONMENT, SOURCE, STAGECRAFT

KEPT = SOURCE / "test/data/runs"
STEPS = 24
STOPPED_BY_SIGNAL = 75

BASE = {
    "model": {"family": "mlp", "hidden": [6, 5], "dropout": 0.1},
    "data": {"type": "synthetic", "samples": 150, "validation_samples": 40, "shape": [8], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "train_steps": STEPS,
    "seed": 3,
    "threads_per_rank": 1,
    "steps_per_print": 0,
    "profiler": {"repeats": 2, "warmup_ms": 0},
    "validation": {"every_steps": 10},
    "checkpoint": {"every_steps": 3, "keep": 1},
    "log": {"timeline_steps": 1},
    "run_dir": "run",
}

# What each run is of, as changes of BASE. A kind of state that is new gets a run here (README.md).
RUNS = {
    "synchronous": {
        "pipeline": {"schedule": "1f1b", "cuts": [2]},
        "gradient_clipping": 0.5,
        "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 3}},
    },
    "zero_bubble": {
        "pipeline": {"schedule": "zb_h1", "cuts": [1, 4]},
        "optimizer": {
            "type": "Muon",
            "params": {"lr": 0.01, "adam_lr": 0.005},
            "groups": [{"most_dimensions": 1, "weight_decay": 0}],
        },
    },
    "interleaved": {
        "pipeline": {"schedule": "interleaved_1f1b", "cuts": [1, 3, 5]},
        "optimizer": {"type": "Adafactor", "params": {"lr": 0.01}},
        "checkpoint": {"every_steps": 3, "keep": 1, "in_background": True},
    },
    "pipedream": {
        "pipeline": {"schedule": "pipedream", "cuts": [2, 4]},
        "optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}},
    },
    "pipedream_replicas": {
        "pipeline": {"schedule": "pipedream", "cuts": [2], "widths": [2, 1], "synchronous_steps": 2},
        "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
    },
    "2bw": {"pipeline": {"schedule": "2bw", "cuts": [2]}},
    "replicas": {
        "model": {
            "family": "sequential",
            "layers": [
                {"type": "linear", "features": 6},
                {"type": "batch_norm"},
                {"type": "relu"},
                {"type": "linear", "features": 4, "name": "head"},
            ],
        },
        "pipeline": {"schedule": "1f1b", "cuts": [2], "widths": [2, 1]},
    },
    "bf16": {
        "pipeline": {"schedule": "1f1b", "cuts": [2]},
        "bf16": {"enabled": True},
        "optimizer": {"type": "Lion", "params": {"lr": 0.001}},
    },
    "fp16_scaled": {
        "pipeline": {"schedule": "1f1b", "cuts": [2]},
        "fp16": {"enabled": True, "initial_scale_power": 24, "loss_scale_window": 4, "hysteresis": 2},
    },
    "averaged": {
        "pipeline": {"schedule": "1f1b", "cuts": [2]},
        "optimizer": {"type": "NAdam", "params": {"lr": 0.01}, "ema_decay": 0.9},
    },
    "float64": {"pipeline": {"schedule": "fill_drain", "cuts": [2]}, "dtype": "float64"},
    "frozen": {
        "model": {"family": "captured", "path": "frozen"},
        "pipeline": {"schedule": "1f1b", "cuts": [2]},
        "loss": None,
    },
    "changed": {
        "pipeline": {"schedule": "1f1b", "cuts": [2]},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.02}},
    },
    "bytes": {
        "model": {"family": "gpt", "blocks": 1, "width": 4, "heads": 2},
        "data": {"type": "text", "path": "shakespeare.txt", "sequence": 8},
        "loss": {"type": "token_cross_entropy"},
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "validation": {"every_steps": 0},
        "pipeline": {"schedule": "1f1b", "cuts": [1]},
    },
}
# Where the first session had another value, which the second was allowed to change: the manifest of its
# checkpoints says so.
BEFORE = {"changed": ("optimizer.params.lr", 0.01)}


def config(name):
    """As the last session had it."""
    whole = {key: value for key, value in {**BASE, **RUNS[name]}.items() if value is not None}
    return json.loads(json.dumps(whole))


def prepare(name, folder):
    """What its config names, in `folder`, and the config."""
    if name == "frozen":
        shutil.copytree(BUILD / "test/captured/frozen", folder / "frozen", dirs_exist_ok=True)
    if name == "bytes":
        shutil.copy(SOURCE / "test/data/text/shakespeare.txt", folder)
    (folder / "run.json").write_text(json.dumps(config(name)))


def stagecraft(folder, *words, code=0):
    """What it says; on standard error, where it fails."""
    done = subprocess.run(
        [STAGECRAFT, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    if done.returncode != code:
        raise AssertionError(f"{words} ends with {done.returncode}, not {code}: {done.stderr}")
    return done.stderr if code else done.stdout


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def newest_checkpoint(run_dir):
    return max((run_dir / "checkpoints").iterdir())


def state(run_dir):
    """Of the newest checkpoint: weights, buffers and the optimizer's state, by file."""
    files = sorted(newest_checkpoint(run_dir).glob("*.safetensors"))
    return {file.name: sha256(file) for file in files}


def losses(run_dir, after):
    """Of what was computed behind step `after`: step, whether it is a validation, loss."""
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [[r["step"], r["validation"], r["loss"]] for r in records if r["step"] > after]


def exported(folder):
    """Weights as PyTorch gets them."""
    stagecraft(folder, "export", "run", "-o", "exported")
    hashes = {file.name: sha256(file) for file in sorted((folder / "exported").glob("*.safetensors"))}
    shutil.rmtree(folder / "exported")
    return hashes


def processor():
    """What LibTorch and its libraries choose their code by, and with it the last bits of sums."""
    about = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        about.setdefault(key.strip(), value.strip())
    chosen_by = ("fma", "avx", "amx", "f16c", "sse4")
    flags = [flag for flag in about.get("flags", "").split() if flag.startswith(chosen_by)]
    model = [about.get(key, "?") for key in ("vendor_id", "cpu family", "model", "cache size")]
    return " ".join([*model, *sorted(flags)])


def torch_version():
    manifest = json.loads((BUILD / "test/captured/frozen/manifest.json").read_text())
    return manifest["torch"]


def train_until_stopped(folder, *words):
    """Ends the run by SIGTERM somewhere in its middle. Its step."""
    metrics = folder / "run/metrics.jsonl"
    for _ in range(100):
        shutil.rmtree(folder / "run", ignore_errors=True)
        process = subprocess.Popen(
            [STAGECRAFT, "train", "run.json", *words], cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL
        )
        while process.poll() is None and not (
            metrics.exists() and metrics.read_text().count("\n") > STEPS // 4
        ):
            time.sleep(0.0003)
        process.send_signal(signal.SIGTERM)
        if process.wait() != STOPPED_BY_SIGNAL:
            continue
        step = int(newest_checkpoint(folder / "run").name.removeprefix("step-"))
        if step <= STEPS - 6:
            return step
    raise AssertionError("it is over before it can be stopped")


def pack(folder, path):
    """Without what names this machine or changes when nothing else does."""
    shutil.rmtree(folder / "run/logs", ignore_errors=True)
    lock = folder / "run/.lock"
    lock.write_text(lock.read_text().splitlines()[0] + "\n")
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for file in sorted((folder / "run").rglob("*")):
            about = tarfile.TarInfo(str(file.relative_to(folder)))
            if file.is_file():
                about.size = file.stat().st_size
                with file.open("rb") as opened:
                    archive.addfile(about, opened)
    path.write_bytes(gzip.compress(data.getvalue(), mtime=0))


def unpack(path, folder):
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")


def left_alone(name, folder):
    """The directory of the same run, from its beginning to its end."""
    folder.mkdir()
    prepare(name, folder)
    stagecraft(folder, "train", "run.json")
    return folder / "run"


def make(name, into):
    with tempfile.TemporaryDirectory(prefix="stagecraft-kept-") as scratch:
        folder = Path(scratch)
        prepare(name, folder)
        if name in BEFORE:
            key, value = BEFORE[name]
            step = train_until_stopped(folder, "--set", f"{key}={value}") + 3
            stagecraft(
                folder, "train", "run.json", "--resume", "--set", f"train_steps={step}", "--allow", key
            )
        else:
            step = train_until_stopped(folder)
        pack(folder, into / f"{name}.tar.gz")
        kept = exported(folder)
        stagecraft(folder, "train", "run.json", "--resume")
        if name not in BEFORE:
            assert losses(folder / "run", step) == losses(left_alone(name, folder / "alone"), step), name
        facts = {
            "step": step,
            "exported": kept,
            "losses": losses(folder / "run", step),
            "state": state(folder / "run"),
            "torch": torch_version(),
            "processor": processor(),
        }
        (into / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
        return json.loads((newest_checkpoint(folder / "run") / "manifest.json").read_text())["format"]


def main(names):
    unknown = set(names) - RUNS.keys()
    if unknown:
        sys.exit(f"{sorted(unknown)} are none of {sorted(RUNS)}")
    with tempfile.TemporaryDirectory(prefix="stagecraft-kept-") as scratch:
        made = {make(name, Path(scratch)) for name in names or RUNS}
        assert len(made) == 1
        into = KEPT / f"format_{made.pop()}"
        into.mkdir(exist_ok=True)
        files = sorted(Path(scratch).iterdir())
        there = [file.name for file in files if (into / file.name).exists()]
        if there:
            sys.exit(f"{into} has {there}: a run is made once, and then kept")
        for file in files:
            shutil.copy(file, into)
        print(f"{into}: {len(names or RUNS)} runs, {sum(f.stat().st_size for f in into.iterdir())} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
