"""Pipelines whose ranks are processes, under torchrun and mpirun, beside one whose ranks are threads."""

import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import BUILD, MEASURED_ONCE, SOURCE, require_package

require_package()

SCRIPT = str(SOURCE / "test" / "scripts" / "pipeline_ranks.py")
LAUNCHERS = {
    "threads": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "mpirun": ["mpirun", "--oversubscribe", "-np", "2", sys.executable],
}


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    return tmp_path_factory.mktemp("captures")


def launched(launcher, folder, whats, captures, package=BUILD / "python"):
    if not shutil.which(LAUNCHERS[launcher][0]):
        pytest.skip(f"there is no {launcher}")
    return subprocess.run(
        [*LAUNCHERS[launcher], SCRIPT, str(folder), *whats],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": str(package),
            "STAGECRAFT_CACHE": str(captures),
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        },
    )


# Of one launch each, since every process imports torch. What ends a rank has a launch of its own.
WHATS = {
    "threads": ["train"],
    "torchrun": ["train", "unequal", "unsaved", "half_saved", "wrong", "refusals"],
    "mpirun": ["train", "unsaved", "refusals", "at_once"],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, captures):
    """Of a launcher, with what its ranks said and left."""

    @functools.cache
    def folder_of(launcher):
        folder = tmp_path_factory.mktemp(launcher)
        done = launched(launcher, folder, WHATS[launcher], captures)
        assert done.returncode == 0, f"{launcher}: {done.stdout}\n{done.stderr}"
        return folder

    return folder_of


def test_processes_train_as_threads_do(folders):
    found = {}
    for launcher in LAUNCHERS:
        ranks = sorted((folders(launcher) / "train").glob("rank-*.pt"))
        assert len(ranks) == (1 if launcher == "threads" else 2)
        for file in ranks:
            found[launcher, file.name] = torch.load(file, weights_only=True)
    first = found["threads", "rank-0.pt"]
    for who, each in found.items():
        assert each["losses"] == first["losses"], who
        assert all(torch.equal(each["weights"][n], t) for n, t in first["weights"].items()), who


def test_mpirun_without_mpi_is_refused_with_one_line(tmp_path, captures):
    package = tmp_path / "package"
    shutil.copytree(BUILD / "python", package, symlinks=True)
    (package / "stagecraft" / "_mpi.so").unlink()
    done = launched("mpirun", tmp_path, ["unequal"], captures, package)
    assert done.returncode == 0, done.stderr
    for text in said(tmp_path / "unequal").values():
        assert re.match(
            r"MPI cannot be loaded: .*_mpi.so.* under torchrun, or as one process, no MPI is", text
        )
    done = launched("threads", tmp_path, ["train"], captures, package)
    assert done.returncode == 0, done.stderr


def test_pipelines_over_mpi_take_turns(folders):
    words = said(folders("mpirun") / "at_once")[0]
    assert words.startswith("two pipelines at once in threads of one process, over MPI")


@functools.cache
def free_port(what):
    """The same for both ranks of a test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def said(folder):
    return {int(file.name.removeprefix("said-")): file.read_text() for file in folder.glob("said-*")}


def alike(folder):
    """What both ranks say."""
    words = said(folder)
    assert words.keys() == {0, 1}
    assert words[0] == words[1]
    return words[0]


def test_modules_that_differ_are_refused(folders):
    assert "rank 1 has other module's weights than rank 0" in alike(folders("torchrun") / "unequal")


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_a_save_that_is_refused_leaves_all_ranks_as_they_were(folders, launcher):
    assert "a file is in its place" in alike(folders(launcher) / "unsaved")


def test_a_save_that_rank_0_alone_cannot_finish_is_refused_by_all(folders):
    of_model, of_taker = alike(folders("torchrun") / "half_saved").splitlines()
    assert "the model cannot be kept beside the checkpoint: " in of_model
    assert "was taken over by start " in of_taker


def test_a_batch_that_one_refuses_is_refused_by_all(folders):
    of_numbers, of_sizes, of_form = alike(folders("torchrun") / "wrong").splitlines()
    assert of_numbers.startswith("rank 1 refuses its batch: ")
    assert "13" in of_numbers
    assert "rank 1 has micro-batches of 4, 4, 4, 3 samples of length 0, and rank 0 micro-" in of_sizes
    assert "rank 1 refuses its batch: the batch is a tuple of 3" in of_form


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_what_is_refused_is_refused_alike_on_all_ranks(folders, launcher):
    """Whoever finds it: all ranks, rank 0 alone, or another one."""
    words = alike(folders(launcher) / "refusals")
    kinds = dict(line.split(": ", 2)[:2] for line in words.splitlines())
    assert "nothing" not in kinds.values(), words
    assert {*kinds.values()} == {"InputError", "CaptureError"}


def by_hand(folder, what, captures):
    """Both ranks without a launcher, which would end the others before they can say anything."""
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(folder), what],
            env={
                **os.environ,
                "PYTHONPATH": str(BUILD / "python"),
                "STAGECRAFT_CACHE": str(captures),
                "OMP_NUM_THREADS": "1",
                "TORCHELASTIC_RUN_ID": "test",
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port(what)),
            },
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        rank.communicate(timeout=100)


def test_a_killed_rank_is_named(tmp_path, captures):
    by_hand(tmp_path, "killed", captures)
    assert "rank 1" in said(tmp_path / "killed")[0]


def test_an_error_of_the_script_ends_the_others(tmp_path, captures):
    by_hand(tmp_path, "raises", captures)
    assert "its Python ended with ValueError: of the script" in said(tmp_path / "raises")[0]


def test_the_command_line_under_torchrun(tmp_path, captures):
    """Each process is a rank of one run, and its losses are those of threads."""
    config = {
        "model": {"family": "mlp", "hidden": [16, 16]},
        "data": {"type": "synthetic", "samples": 64, "validation_samples": 0, "shape": [8], "classes": 4},
        "loss": {"type": "cross_entropy"},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 4,
        "train_steps": 4,
        **MEASURED_ONCE,
        "threads_per_rank": 1,
        "pipeline": {"schedule": "1f1b", "stages": 2},
    }
    losses = {}
    for launcher in ("threads", "torchrun"):
        config["run_dir"] = str(tmp_path / launcher)
        (tmp_path / "run.json").write_text(json.dumps(config))
        done = subprocess.run(
            [*LAUNCHERS[launcher], "-m", "stagecraft", "train", str(tmp_path / "run.json")],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
            env={**os.environ, "PYTHONPATH": str(BUILD / "python"), "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / launcher / "metrics.jsonl").read_text().splitlines()
        losses[launcher] = [json.loads(line)["loss"] for line in lines]
    assert losses["torchrun"] == losses["threads"]
