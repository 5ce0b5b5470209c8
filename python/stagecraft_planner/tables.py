"""A table for a terminal and for a notebook, and figures as people read them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass


def bytes_text(count: float) -> str:
    """33652312 as "32.1 MiB"."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit + 1 < len(units):
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.1f} {units[unit]}"


def ms_text(ms: float) -> str:
    return f"{ms:,.3f}" if ms < 1000 else f"{ms:,.1f}"


def plural(count: int, word: str) -> str:
    """4 as "4 stages"."""
    end = "es" if word.endswith("h") else "s"
    return f"{count} {word}{'' if count == 1 else end}"


def layout_text(stages: int, ranks: int) -> str:
    """ "4 stages on 8 ranks"."""
    return f"{plural(stages, 'stage')} on {plural(ranks, 'rank')}"


def share_text(share: float) -> str:
    return f"{share * 100:.1f} %"


@dataclass(frozen=True)
class Table:
    """Cells of text. A column whose title begins with "<" is aligned to the left, others to the right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def text(self) -> str:
        titles = [column.removeprefix("<") for column in self.columns]
        widths = [max(map(len, cells)) for cells in zip(titles, *self.rows)]
        left = [column.startswith("<") for column in self.columns]

        def line(cells: Sequence[str]) -> str:
            aligned = [
                cell.ljust(width) if to_left else cell.rjust(width)
                for cell, width, to_left in zip(cells, widths, left)
            ]
            return ("  " + "  ".join(aligned)).rstrip()

        rule = "  " + "-" * (sum(widths) + 2 * len(widths) - 2)
        lines = [self.caption, "", line(titles), rule, *map(line, self.rows)]
        return "\n".join([*lines, *([self.note] if self.note else [])]) + "\n"

    def html(self) -> str:
        left = ["left" if column.startswith("<") else "right" for column in self.columns]

        def cells(tag: str, texts: Sequence[str]) -> str:
            return "".join(
                f'<{tag} style="text-align:{side}">{html.escape(text)}</{tag}>'
                for text, side in zip(texts, left)
            )

        head = cells("th", [column.removeprefix("<") for column in self.columns])
        body = "".join(f"<tr>{cells('td', row)}</tr>" for row in self.rows)
        note = f"<div>{html.escape(self.note)}</div>" if self.note else ""
        return (
            f'<div><table><caption style="text-align:left">{html.escape(self.caption)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}</div>"
        )
