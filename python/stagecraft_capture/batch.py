"""What the module reads of a batch: its input, and other fields (masks, labels), with samples to capture and
check it with."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from stagecraft_tools.console import first_line

from .errors import CaptureError

if TYPE_CHECKING:
    from .aliases import Json


# of which a micro-batch of b takes the first b, so that captures at different sizes see equal samples
SAMPLES = 8


@dataclass
class Field:
    name: str
    shape: list  # of one sample
    dtype: torch.dtype = torch.int64
    below: int = 2  # integers are drawn from 0 up to it
    ignore: int | None = None  # a label that does not count: some are drawn
    lengths: bool = False  # a padding mask: ones, then zeros
    positions: bool = False  # within documents, of which a sample has two
    source: str | None = None  # the data set's field, where nobody says otherwise
    fill: float | None = None  # of all entries, where the data set has no such field

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        size = (SAMPLES, *self.shape)
        if self.lengths:
            most = self.shape[-1]
            lengths = torch.randint((most + 1) // 2, max(most, 2), (SAMPLES, 1), generator=generator)
            return (torch.arange(most) < lengths).to(self.dtype)
        if self.positions:
            first, places = (
                torch.randint(1, max(size[-1], 2), (SAMPLES, 1), generator=generator),
                torch.arange(size[-1]),
            )
            return torch.where(places < first, places, places - first).to(self.dtype)
        if self.dtype.is_floating_point:
            return torch.randn(size, generator=generator).to(self.dtype)
        drawn = torch.randint(self.below, size, generator=generator)
        if self.ignore is not None:
            drawn[torch.rand(size, generator=generator) < 0.1] = self.ignore
            drawn.view(-1)[1::3] = self.ignore  # at least these, and in no micro-batch all
            drawn.view(-1)[0] = 0
            if self.shape:  # nor in a sample, whose first label a causal model leaves out
                drawn[..., -1] = 0
        return drawn.to(self.dtype)

    def manifest(self, type_text: Callable[[torch.Tensor], str]) -> Json:
        """As manifest.json has it. `type_text`: of a tensor."""
        kind, _, sizes = type_text(torch.empty((1, *self.shape), dtype=self.dtype)).partition("[1")
        about: Json = {"type": f"{kind}[b{sizes}"}
        if self.source is not None:
            about["from"] = self.source
        if self.fill is not None:
            about["fill"] = self.fill
        return about


class Batch:
    """The fields of a batch; the first is the model's input."""

    def __init__(self, fields: list[Field], samples: dict[str, torch.Tensor] | None = None) -> None:
        """`samples`: SAMPLES of each field, in place of what is drawn."""
        self.fields = {field.name: field for field in fields}
        self.input = fields[0].name
        generator = torch.Generator().manual_seed(3)
        self.given = samples is not None
        self.drawn = samples or {field.name: field.draw(generator) for field in fields}

    def field(self, name: str) -> Field:
        """The input, where a layer behind the first one reads it again, is the data set's input."""
        found = self.fields[name]
        return replace(found, source="inputs") if name == self.input else found

    def at(self, b: int) -> dict[str, torch.Tensor]:
        """More than were drawn are zeros, which take no memory until they are read: what exports does not
        read them."""

        def zeros(like: torch.Tensor) -> torch.Tensor:
            return torch.zeros((b, *like.shape[1:]), dtype=like.dtype)

        return {
            name: drawn[:b].clone() if b <= SAMPLES else zeros(drawn) for name, drawn in self.drawn.items()
        }

    def cut(self, length: int) -> Batch:
        """The same of samples of another length: the first size of the input, and of each field that has it
        in common."""
        whole = self.fields[self.input].shape
        if not whole or not 1 <= length < whole[0]:
            raise CaptureError(
                f"--lengths {length}: expected lengths from 1 to {whole[0] - 1 if whole else 0}, below that"
                f" of a sample; samples are {whole}"
            )
        cut = {name for name, f in self.fields.items() if f.shape[:1] == whole[:1]}
        fields = [
            replace(f, shape=[length, *f.shape[1:]]) if name in cut else f for name, f in self.fields.items()
        ]
        if not self.given:
            return Batch(fields)
        return Batch(fields, {n: t[:, :length] if n in cut else t for n, t in self.drawn.items()})


def drawn(fields: list[Field]) -> Batch:
    """The batch, unless its samples are too large to draw."""
    try:
        return Batch(fields)
    except (RuntimeError, MemoryError) as error:
        sizes = ", ".join(f"{field.name} {field.shape}" for field in fields)
        raise CaptureError(
            f"{SAMPLES} samples of {sizes} cannot be drawn here: {first_line(error)}; give smaller sizes"
        ) from error


def sizes_in(text: str) -> list[int]:
    """Of --input."""
    try:
        shape = [int(size) for size in text.split(",")]
    except ValueError:
        shape = []
    if not shape or min(shape) < 1:
        raise CaptureError(f"--input {text}: expected sizes of one sample, as in 3,224,224")
    return shape


DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "bool": torch.bool,
}


def parse_field(text: str, option: str = "--field") -> Field:
    """NAME=TYPE[SIZES] or NAME=TYPE[SIZES]<N, as in mask=bool[128] or labels=i64[128]<1000."""
    found = re.fullmatch(r"(\w+)=(\w+)\[([\d,]*)\](?:<(\d+))?", text)
    if found is None or found[2] not in DTYPES:
        raise CaptureError(
            f"{option} {text}: expected NAME=TYPE[SIZES], sizes of one sample, TYPE one of"
            f" {', '.join(DTYPES)}; as in mask=bool[128], or labels=i64[128]<1000 with integers below 1000"
        )
    shape = [int(size) for size in found[3].split(",") if size]
    if 0 in shape or not 1 <= int(found[4] or 2) < 2**63:
        raise CaptureError(
            f"{option} {text}: expected sizes and a bound of 1 at least, as in x=i64[128]<1000"
        )
    return Field(found[1], shape, DTYPES[found[2]], below=int(found[4] or 2))
