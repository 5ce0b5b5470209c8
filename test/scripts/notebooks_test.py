"""The notebooks of examples/notebooks run as they stand."""

import json
import os

import pytest

from places import BUILD

pytest.importorskip("nbclient", reason="scripts/setup.sh --models installs it")
pytest.importorskip("ipykernel", reason="scripts/setup.sh --models installs it")

import run_notebooks


def executed(name):
    return run_notebooks.executed(name, BUILD)


def shown(notebook):
    """What cells show as their results: of each the kind that a page takes."""
    outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = ("image/svg+xml", "text/html", "text/plain")
    return [next(kind for kind in kinds if kind in data) for data in outputs if data]


@pytest.mark.parametrize("name", sorted(path.name for path in run_notebooks.NOTEBOOKS.glob("*.ipynb")))
def test_notebooks_are_kept_without_outputs(name):
    cells = json.loads((run_notebooks.NOTEBOOKS / name).read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def text_of(notebook):
    """All that is printed or shown as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in outputs)


def needs(*modules):
    if not os.path.exists(BUILD / "planner/stagecraft"):
        pytest.skip("there is no planner")
    for module in modules:
        pytest.importorskip(module, reason="scripts/setup.sh --models installs it")
    if modules and not (BUILD / "python/stagecraft").is_dir():
        pytest.skip("the module for Python was not built")


def test_a_model_is_planned_for_a_cluster():
    needs()
    notebook = executed("plan_for_a_cluster.ipynb")
    kinds = shown(notebook)
    assert kinds.count("image/svg+xml") == 4 and kinds.count("text/html") == 8


def test_a_first_pipeline():
    needs("torch")
    notebook = executed("first_pipeline.ipynb")
    kinds = shown(notebook)
    assert kinds.count("image/svg+xml") == 2 and kinds.count("text/html") == 2
    assert "losses and weights equal to the bit: True" in text_of(notebook)


def test_adapters_go_back_to_peft():
    needs("torch", "transformers", "peft")
    notebook = executed("lora.ipynb")
    assert shown(notebook).count("text/html") == 1
    assert "adapter_model.safetensors" in text_of(notebook)
