"""A notebook as a page: text, code, and where it was run what each cell showed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path


def page(notebook: Path) -> str:
    return "\n\n".join(_parts(json.loads(notebook.read_text(encoding="utf-8"))["cells"])) + "\n"


def _parts(cells: list[dict]) -> Iterator[str]:
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield text
        elif cell["cell_type"] == "code" and text.strip():
            yield f"```python\n{text}\n```"
            for output in cell.get("outputs", []):
                yield from _shown(output)


def _shown(output: dict) -> Iterator[str]:
    """An output as the first kind that a page takes."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        yield _html("svg", "".join(data["image/svg+xml"]))
    elif "text/html" in data:
        yield _html("html", "".join(data["text/html"]))
    elif text := "".join(data.get("text/plain", output.get("text", ""))):
        yield f"```text\n{text.rstrip()}\n```"


def _html(kind: str, text: str) -> str:
    """As one block of HTML: an empty line would end it."""
    dense = re.sub(r"\n\s*\n", "\n", text.strip())
    return f'<div class="output {kind}">\n{dense}\n</div>'
