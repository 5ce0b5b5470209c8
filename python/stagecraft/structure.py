"""A module's structure as a number, for a cache of captures: all that decides what a capture makes of it, but
for the values of its weights.

It is what pickle sees, with tensors that are parameters or persistent buffers by their shapes and all others
by their values, and the source of every file that is not installed, since any line of it may decide what a
forward does; of installed packages what pip recorded of their files, and Stagecraft's own sources, so that an
upgrade captures anew. Functions and classes without a file are what their code does (code_parts.py).
Whatever cannot be pickled has no such number, and is captured each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stagecraft_tools.installed import is_installed

from .code_parts import has_no_file, parts_of, patched

OURS = Path(__file__).parents[1]  # which has Stagecraft's packages


class _NoStructure(Exception):
    pass


def structure_of(module: Any, others: Iterable[Any]) -> str | None:
    """32 hexadecimal digits; None where there is no telling. `others`: what decides a capture besides."""
    import torch

    weights = {id(t): name for name, t in module.state_dict(keep_vars=True).items()}
    trained = {id(p): p.requires_grad for p in module.parameters()}

    seen: dict[int, int] = {}  # functions and classes without a file, in the order in which they are met
    kept: list[Any] = []  # so that no other gets the place of one that is gone

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            if isinstance(thing, types.ModuleType):
                return ("module", thing.__name__)
            if isinstance(thing, (types.FunctionType, type)) and has_no_file(thing):
                if id(thing) in seen:
                    return ("again", seen[id(thing)])
                seen[id(thing)] = len(seen)
                kept.append(thing)
                return parts_of(thing)
            if not isinstance(thing, torch.Tensor):
                return None
            about = (tuple(thing.shape), str(thing.dtype), thing.stride(), trained.get(id(thing)))
            if id(thing) in weights:
                return ("weight", weights[id(thing)], about)
            values = thing.detach().cpu().contiguous()
            if thing.layout != torch.strided:
                raise _NoStructure
            numbers = memoryview(values.view(-1).view(torch.uint8).numpy())
            return ("tensor", about, hashlib.sha256(numbers).hexdigest())

    text = io.BytesIO()
    try:
        Pickler(text, protocol=4).dump((module, list(others), patched(module)))
        sources = _sources()
    except Exception:  # whatever a module of somebody else's raises when it is pickled
        return None
    if sources is None:
        return None
    found = hashlib.sha256(text.getvalue())
    for part in (torch.__version__, sys.version, sources, *_packages()):
        found.update(part.encode())
    return found.hexdigest()[:32]


def _sources() -> str | None:
    """Of all files of Python that are loaded and not installed, and of all of Stagecraft's. None where one
    cannot be read."""
    loaded = (getattr(sys.modules[name], "__file__", None) for name in sorted(sys.modules))
    users = [file for file in loaded if file and file.endswith(".py") and not is_installed(file)]
    ours = sorted(str(file) for file in OURS.glob("stagecraft*/*.py"))
    found = hashlib.sha256()
    for file in (*(each for each in users if each not in ours), *ours):
        if not os.path.isfile(file):  # torch.ops has a name of no file
            continue
        try:
            with open(file, "rb") as source:
                found.update(source.read())
        except OSError:
            return None
    return found.hexdigest()


def _packages() -> Iterator[str]:
    """Of each package that is installed: name and version, and digests of its files where pip recorded
    them, which also tell of a version that was installed anew with other code."""
    for place in filter(os.path.isdir, sys.path):
        for name in sorted(os.listdir(place)):
            if name.endswith((".dist-info", ".egg-info")):
                yield name
                with contextlib.suppress(OSError), open(f"{place}/{name}/RECORD", encoding="utf-8") as record:
                    yield record.read()
