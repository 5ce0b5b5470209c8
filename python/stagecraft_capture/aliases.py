"""Types that many functions pass on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

if TYPE_CHECKING:
    from .composite import Composite
    from .cut import Piece

Json = dict[str, Any]  # an object of a graph file, a manifest or a config
Step = list[Any]  # of a graph file: operator, results, arguments
Needs = dict[fx.Node, list[fx.Node]]  # of each node those that it needs
Candidates = list[tuple[int, list[fx.Node]]]  # index of the last node before a cut, values that go on there
Modes = dict[bool, dict[int, "Composite"]]  # of exports: whether in training, the size of micro-batches
Cuts = dict[bool, dict[int, list["Piece"]]]  # their pieces, likewise
