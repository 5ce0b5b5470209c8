"""`_engine`, the module in C++. Importing this file fails with one line where it cannot be loaded here."""

import torch  # whose libraries the module needs

from stagecraft_tools.torch_versions import minor

from .errors import InputError

try:
    from ._built import TORCH

    if minor(torch.__version__) != TORCH:
        raise InputError(
            f"torch {torch.__version__} is installed, and this stagecraft was built for {TORCH}: install"
            f" torch {TORCH}, or build stagecraft again beside this one"
        )
    from . import _engine
except ImportError as error:
    raise InputError(f"the engine cannot be loaded beside torch {torch.__version__}: {error}") from error

__all__ = ["_engine"]
