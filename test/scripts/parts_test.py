"""Parts of the package that do not fit together: one line says which met, and what to do."""

import os
import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from places import BUILD, require_package

require_package()

AGAIN = "install the wheel again"


@pytest.fixture
def package(tmp_path):
    """A copy whose files can be changed."""
    for name in ("stagecraft", "stagecraft_capture", "stagecraft_planner", "stagecraft_tools"):
        shutil.copytree(BUILD / "python" / name, tmp_path / name, ignore=shutil.ignore_patterns("bin"))
    return tmp_path


def imported(package, what, **variables):
    done = subprocess.run(
        [sys.executable, "-c", what],
        env={**os.environ, "PYTHONPATH": str(package), **variables},
        capture_output=True,
        text=True,
        check=False,
        cwd=package,
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


LOAD = "import stagecraft.engine"


def test_parts_of_one_build_fit(package):
    assert imported(package, LOAD) == ""


def test_another_engine_is_told_by_its_interface(package):
    described = package / "stagecraft" / "_engine.pyi"
    described.write_text(described.read_text() + "\ndef newer() -> None: ...\n")
    said = imported(package, LOAD)
    assert "is of another build of stagecraft than the Python files beside it" in said
    assert AGAIN in said


def test_an_engine_from_before_is_told(package):
    for file in (package / "stagecraft").glob("_engine.*.so"):
        file.unlink()
    (package / "stagecraft" / "_engine.py").write_text("")
    said = imported(package, LOAD)
    assert "version before 0.1.0 with interface none" in said
    assert AGAIN in said


def test_the_part_for_mpi_fits_too(package):
    file = package / "stagecraft" / "_mpi.so"
    if not file.exists():
        pytest.skip("built without MPI")
    whole = file.read_bytes()
    engine = next((package / "stagecraft").glob("_engine.*.so")).read_bytes()
    written = re.compile(rb"\x00([0-9a-f]{12})\x00")
    (digest,) = {*written.findall(engine)} & {*written.findall(whole)}  # both hold the interface
    file.write_bytes(whole.replace(digest, b"0" * len(digest)))
    said = imported(package, "from stagecraft.engine import _engine; _engine.gather_over_mpi('')")
    assert f"_mpi.so is of another build of stagecraft (interface {'0' * 12})" in said
    assert AGAIN in said
