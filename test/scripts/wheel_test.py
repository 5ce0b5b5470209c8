"""The wheel stagecraft: what pyproject.toml says, what a build installs into it, and what is refused."""

import importlib
import os
import re
import subprocess
import sys

import pytest

from places import BUILD, ENVIRONMENT, SOURCE

PROJECT = (SOURCE / "pyproject.toml").read_text()
PROVIDER = SOURCE / "python/wheel/torch_here.py"


def torch_of(version, folder):
    """A package torch that is a version and nothing else."""
    (folder / "torch").mkdir()
    (folder / "torch/version.py").write_text(f"__version__ = {version!r}\n")
    (folder / "torch/__init__.py").write_text("from .version import __version__\n")
    return folder / "torch"


def ask_provider(torch):
    return subprocess.run(
        [sys.executable, PROVIDER],
        env={**os.environ, "STAGECRAFT_LIBTORCH": str(torch)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_commands_are_functions():
    commands = re.findall(r'^(stagecraft[a-z-]*) = "([a-z_.]+):([a-z]+)"$', PROJECT, re.MULTILINE)
    assert len(commands) == 7
    for _, module, function in commands:
        # Of stagecraft.__main__, too, which loads nothing of the engine's until it is called.
        assert callable(getattr(importlib.import_module(module), function))


def test_it_has_one_version():
    import stagecraft_planner

    version = re.search(r'^version = "(.*)"$', PROJECT, re.MULTILINE)[1]
    assert version == stagecraft_planner.__version__
    assert f"project(stagecraft VERSION {version} " in (SOURCE / "CMakeLists.txt").read_text()


def test_its_dependencies_are_those_of_the_torch_it_is_built_with(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PROVIDER.parent))
    torch_here = importlib.import_module("torch_here")
    for known in torch_here.VERSIONS:
        (tmp_path / known.minor).mkdir()
        torch = torch_of(f"{known.torch}+cu130", tmp_path / known.minor)
        assert ask_provider(torch).stdout == str(torch)
        monkeypatch.setenv("STAGECRAFT_LIBTORCH", str(torch))
        made = torch_here.dynamic_metadata({}, {})
        assert made["dependencies"] == [f"torch=={known.minor}.*", "numpy", "safetensors"]
        assert (
            f"torchvision=={known.torchvision.rpartition('.')[0]}.*"
            in made["optional-dependencies"]["models"]
        )


def test_another_torch_is_refused_with_one_line_before_anything_is_built(tmp_path):
    for torch, text in [
        (torch_of("2.1.5", tmp_path), "torch: is torch 2.1.5, expected 2."),
        (tmp_path, f"{tmp_path}: is no torch of Python's"),
    ]:
        said = ask_provider(torch)
        assert said.returncode == 1 and text in said.stderr, said.stderr
        assert said.stderr.startswith("stagecraft: ") and said.stderr.count("\n") == 1


def test_another_torch_is_refused_with_one_line_by_the_engine(tmp_path):
    package = BUILD / "python/stagecraft"
    if not list(package.glob("_engine.*.so")):
        pytest.skip(f"there is no module in {package}")
    torch_of("2.1.5+cpu", tmp_path)
    said = subprocess.run(
        [sys.executable, "-m", "stagecraft", "--version"],
        env={**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{package.parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2, said.stderr
    assert re.fullmatch(
        r"stagecraft: torch 2\.1\.5\+cpu is installed, and this stagecraft was built for 2\.\d+: .*\n",
        said.stderr,
    )


def test_a_build_installs_what_runs_without_its_machine(tmp_path):
    if not list((BUILD / "python/stagecraft").glob("_engine.*.so")):
        pytest.skip(f"there is no module in {BUILD}")
    subprocess.run(
        ["cmake", "--install", BUILD, "--component", "wheel", "--prefix", tmp_path / "wheel"],
        capture_output=True,
        check=True,
    )
    packages = [path for path in (SOURCE / "python").glob("stagecraft*") if path.is_dir()]
    assert {path.name for path in (tmp_path / "wheel").iterdir()} == {path.name for path in packages}
    for package in packages:
        for file in package.glob("*.py"):
            assert (tmp_path / "wheel" / package.name / file.name).read_bytes() == file.read_bytes()
    (engine,) = (tmp_path / "wheel/stagecraft").glob("_engine.*.so")
    planner = tmp_path / "wheel/stagecraft_planner/bin/stagecraft"
    assert subprocess.run([planner, "--version"], check=True, capture_output=True).stdout
    for program in (engine, planner):
        said = subprocess.run(["objdump", "-p", program], check=True, capture_output=True, text=True).stdout
        assert not re.search(r"NEEDED +lib(fmt|spdlog)", said), said
        folders = re.search(r"R(?:UN)?PATH +(.*)", said)
        assert (
            all(folder.startswith("$ORIGIN/") for folder in folders[1].split(":"))
            if folders
            else program == planner
        )
    assert (
        "$ORIGIN/../torch/lib"
        in subprocess.run(["objdump", "-p", engine], check=True, capture_output=True, text=True).stdout
    )
