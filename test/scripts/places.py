"""Where things are. STAGECRAFT_BUILD: the build folder, where it is not the checkout's build/."""

import os
import sys
from pathlib import Path

# Processes of tests would else compile PyTorch anew, each for seconds, as scripts/environment.sh says.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STAGECRAFT_BUILD", SOURCE / "build")).absolute()
STAGECRAFT = str(BUILD / "stagecraft")
# Of commands that tests run.
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SOURCE}/python", "OMP_NUM_THREADS": "1"}
# Whether all cases are asked for, and not those alone without which something would go untried
# (CONTRIBUTING.md).
FULL = os.environ.get("STAGECRAFT_FULL") == "1"
# Of a config, where nobody reads the plan: measuring 100 times takes longer than the steps of a test.
MEASURED_ONCE = {"profiler": {"repeats": 1, "warmup_ms": 0}}


def require_package() -> Path:
    """The folder with the package for Python as it was built, from where `import stagecraft` finds it now. A
    file of tests that calls this first is skipped where there is none."""
    folder = BUILD / "python"
    if not (folder / "stagecraft").is_dir():
        import pytest

        pytest.skip("the module for Python was not built", allow_module_level=True)
    sys.path.insert(0, str(folder))
    return folder


def covering(every, chosen):
    """A test's cases: the chosen ones, which between them try what all do; all of them where FULL."""
    every, chosen = list(every), list(chosen)
    assert all(case in every for case in chosen), chosen
    return every if FULL else chosen
