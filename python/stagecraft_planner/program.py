"""A schedule, written out: what each rank computes, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from .binary import Call
from .document import Document
from .tables import layout_text
from .typed import KEY

Operation = Literal[
    "load",
    "forward",
    "backward_input",
    "backward_weight",
    "backward",
    "recompute",
    "reduce",
    "tie",
    "agree_norm",
    "step",
    "report_loss",
]


@dataclass(frozen=True, kw_only=True)
class Skip:
    """What goes directly from a stage to one behind its next."""

    from_stage: int = field(metadata={KEY: "from"})
    to_stage: int = field(metadata={KEY: "to"})


@dataclass(frozen=True, kw_only=True)
class Action:
    """One thing that a rank does. Fields that the operation has not are None."""

    op: Operation
    stage: int | None = None
    micro_batch: int | None = None
    version: int | None = None  # of the weights that are read
    group: int | None = None  # the accumulation
    tie: int | None = None  # which of the program's ties


@dataclass(frozen=True, kw_only=True, repr=False)
class Program(Document):
    """One list of actions per rank, of one segment: a step, or several of a schedule without a flush.

    load() and from_text() take each form that `stagecraft convert` reads: text, JSON and PyTorch's CSV.
    """

    _kind: ClassVar[str] = "schedule"
    schedule: str = "custom"
    kind: Literal["train", "validate"] = "train"
    stages: tuple[tuple[int, ...], ...]  # the ranks that hold each stage
    group_sizes: tuple[int, ...]  # micro-batches of each accumulation
    loads: tuple[int, ...] = ()  # stages that read fields of the batch, besides the first and the last
    ties: tuple[tuple[int, ...], ...] = ()  # of each tied weight, the stages of the layers that hold it
    skips: tuple[Skip, ...] = ()
    gradient_from: int = 0  # the first stage with a trained weight
    ranks: tuple[tuple[Action, ...], ...]

    @classmethod
    def from_text(cls, text: str) -> Program:
        """From any form: lines like `rank 0: L0 F0 L1 F1 B0 ...`, JSON, or PyTorch's CSV."""
        return cls._of_text(text, "schedule")

    @classmethod
    def _of_text(cls, text: str, name: str) -> Program:
        if text.lstrip()[:1] in ("{", "/"):
            return super()._of_text(text, name)
        # The command tells text and PyTorch's CSV apart by what they begin with.
        call = Call("convert", ("{schedule}", "--to=json"), {"schedule": text}, {"schedule": name})
        return super()._of_text(call.run().stdout, name)

    def to_text(self) -> str:
        """One line per rank: `rank 0: L0 F0 L1 F1 B0 ...`."""
        return self._converted("text")

    def to_csv(self, form: Literal["csv", "csv-comms", "csv-comms-2.11"] = "csv") -> str:
        """PyTorch's CSV: computation alone, with sends, receives and waits, or without waits (torch 2.11)."""
        return self._converted(form)

    def svg(self) -> str:
        """A picture in which each forward and each half of a backward takes 1 ms."""
        return self._call("simulate", "--unit-costs", "--no-text").run("--svg={out.svg}").written["out.svg"]

    def draw(self) -> str:
        """The same picture, of letters."""
        # Behind the headline, and before the tables.
        return self._call("simulate", "--unit-costs", "--text").run().stdout.split("\n\n")[1] + "\n"

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        sizes = set(self.group_sizes)
        work = f"{self.group_sizes[0]} micro-batches" if len(sizes) == 1 else f"groups {self.group_sizes}"
        return f"<Program {self.schedule}: {layout_text(len(self.stages), len(self.ranks))}, {work}>"

    def _repr_svg_(self) -> str:
        return self.svg()

    def _converted(self, form: str) -> str:
        return self._call("convert", f"--to={form}").run().stdout

    def _call(self, verb: str, *options: str) -> Call:
        return Call(
            verb,
            ("{schedule.json}", *options),
            {"schedule.json": self.to_json()},
            {"schedule.json": self._label},
        )
