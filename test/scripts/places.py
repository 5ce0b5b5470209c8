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
