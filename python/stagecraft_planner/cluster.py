"""The machines that a plan is for: cluster.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from .document import Document
from .errors import InputError
from .nearest import keywords_checked
from .tables import Table, bytes_text, plural


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction of a connection: n bytes take `latency_ms` + n / `bytes_per_second`."""

    latency_ms: float  # of an empty message, one way
    bytes_per_second: float


@dataclass(frozen=True, kw_only=True)
class Level:
    """Children of one node: the devices of a machine, the machines of a rack."""

    count: int
    link: Link  # between those children
    shared_by: Literal["pair", "child"] = "pair"  # child: all ranks under one child share one link


@dataclass(frozen=True, kw_only=True, repr=False)
class Cluster(Document):
    """Devices, links and memory. Rank r has the mixed-radix coordinates of r in `levels`, innermost first."""

    _kind: ClassVar[str] = "cluster"
    name: str = ""  # for people
    levels: tuple[Level, ...]  # innermost first: devices of a machine, machines of a rack, ...
    memory_bytes: int | None = None  # per device; None: no cap
    memory_reserve_bytes: int = 0  # of it, left to contexts, libraries and fragmentation
    speed: tuple[float, ...] = ()  # relative speed per device; empty: all 1

    @classmethod
    @keywords_checked
    def of_machines(
        cls,
        devices: int,
        *,
        bytes_per_second: float,
        latency_ms: float = 0.01,
        machines: int = 1,
        network_bytes_per_second: float | None = None,
        network_latency_ms: float = 0.03,
        network_shared: bool = True,
        memory_bytes: int | None = None,
        memory_reserve_bytes: int = 0,
        speed: Sequence[float] = (),
        name: str = "",
    ) -> Cluster:
        """Machines of `devices` devices each.

        bytes_per_second, latency_ms: between two devices of a machine, one direction.
        network_bytes_per_second, network_latency_ms: between machines; needed where there are several.
        network_shared: the devices of a machine share its network card; otherwise each pair has its own.
        memory_bytes: per device; None: no cap. memory_reserve_bytes of it are left to contexts.
        speed: relative speed per device, `devices * machines` numbers; empty: all 1.
        """
        for what, count in (("devices", devices), ("machines", machines)):
            if count < 1:
                raise InputError(f"{what}: expected at least 1, found {count}")
        levels = [Level(count=devices, link=Link(latency_ms=latency_ms, bytes_per_second=bytes_per_second))]
        if machines != 1:
            if network_bytes_per_second is None:
                raise InputError(f"network_bytes_per_second: is needed between {machines} machines")
            network = Link(latency_ms=network_latency_ms, bytes_per_second=network_bytes_per_second)
            shared: Literal["pair", "child"] = "child" if network_shared else "pair"
            levels.append(Level(count=machines, link=network, shared_by=shared))
        return cls(
            name=name,
            levels=tuple(levels),
            memory_bytes=memory_bytes,
            memory_reserve_bytes=memory_reserve_bytes,
            speed=tuple(speed),
        )

    @property
    def devices(self) -> int:
        """The product of all counts."""
        product = 1
        for level in self.levels:
            product *= level.count
        return product

    def with_memory(self, memory_bytes: int | None, memory_reserve_bytes: int = 0) -> Cluster:
        """The same with another cap per device; None: no cap."""
        return dataclasses.replace(self, memory_bytes=memory_bytes, memory_reserve_bytes=memory_reserve_bytes)

    def __repr__(self) -> str:
        return f"<Cluster {self.name or 'without a name'}: {self._summary()}>"

    def __str__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def _summary(self) -> str:
        memory = f" of {bytes_text(self.memory_bytes)}" if self.memory_bytes is not None else ""
        return f"{plural(self.devices, 'device')}{memory}"

    def _table(self) -> Table:
        rows = [
            [
                str(at),
                str(level.count),
                f"{level.link.latency_ms:g}",
                f"{level.link.bytes_per_second / 1e9:g}",
                level.shared_by,
            ]
            for at, level in enumerate(self.levels)
        ]
        return Table(
            f"{self.name + ': ' if self.name else ''}{self._summary()}",
            ["level", "count", "latency ms", "GB/s", "<link of a"],
            rows,
        )
