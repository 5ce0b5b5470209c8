"""The code of docs/tutorial/python.md and the five lines of the README: they run as they stand, print what
the page says, and run alike under torchrun and mpirun."""

import os
import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")

from places import BUILD, SOURCE, require_package

require_package()

PAGE = (SOURCE / "docs/tutorial/python.md").read_text()
README = (SOURCE / "README.md").read_text()
# Blocks of code, each with what the page says that it prints.
BLOCKS = re.findall(r"```python\n(.*?)```\n(?:\n```\n(?!\$ |python |torchrun )(.*?)```\n)?", PAGE, re.DOTALL)
NUMBER = re.compile(r"\d+\.\d+(?:e-?\d+)?")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


def run(place, command):
    done = subprocess.run(
        command,
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": str(BUILD / "python"),
            "STAGECRAFT_CACHE": str(place / "captures"),
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        },
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def assert_alike(found, said):
    """But for the last digits of numbers, which another processor's kernels may round otherwise."""
    assert NUMBER.sub("N", found) == NUMBER.sub("N", said)
    for ours, theirs in zip(NUMBER.findall(found), NUMBER.findall(said)):
        assert float(ours) == pytest.approx(float(theirs), rel=2e-3), (found, said)


def test_the_page_prints_what_it_says(place):
    (five,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    codes = [*(code for code, _ in BLOCKS), f"loss_fn = smooth\n{five}"]
    (place / "page.py").write_text("".join(f"{code}\nprint('----')\n" for code in codes))
    *printed, of_readme, rest = run(place, [sys.executable, "page.py"]).split("----\n")
    assert len(BLOCKS) == len(printed) == 14
    for (_, said), found in zip(BLOCKS, printed):
        assert_alike(found, said)
    assert len(of_readme.split()) == 10 and not rest


@pytest.mark.by_hand  # pipeline_processes_test.py has the launchers
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_the_same_script_under_a_launcher(place, launcher):
    (place / "train.py").write_text(BLOCKS[0][0] + BLOCKS[1][0])
    commands = {
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
        "mpirun": ["mpirun", "--oversubscribe", "-np", "2", sys.executable],
    }
    if not shutil.which(commands[launcher][0]):
        pytest.skip(f"there is no {launcher}")
    said = BLOCKS[1][1].split()
    found = run(place, [*commands[launcher], "train.py"])
    for line in said:  # of each process, whose lines may lie in one another
        assert found.count(line[:5]) >= 2, found
