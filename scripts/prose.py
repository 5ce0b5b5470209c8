#!/usr/bin/env python3
"""Checks the project's pages where a script can, and says file:line for each finding.

    prose.py [ROOT]

1. Prose in *.md wraps at 100 columns. Tables, code, HTML and lines that are one link or one word may be
longer. 2. Links between pages hold, their #anchors too, and so do the pages that any file names as
docs/.../page.md or `docs/...`.

Exits with 1 where it found something.
"""

import re
import subprocess
import sys
from pathlib import Path

WIDTH = 100
SUFFIXES = {".md", ".h", ".cpp", ".py", ".sh"}

LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w$/.-])(docs/[\w/-]+\.md)(#[\w-]+)?|`(docs/[^\s`]+)")


def tracked(root):
    """The files of the tree that git knows or would add; without git, all of them."""
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    names = (
        listed.stdout.splitlines()
        if listed.returncode == 0
        else [str(p.relative_to(root)) for p in root.rglob("*")]
    )
    return sorted(root / name for name in names if Path(name).suffix in SUFFIXES and (root / name).is_file())


def prose_lines(text):
    """Number and text of each line outside code blocks."""
    fence, indented, blank_before = None, False, True
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence:
            if mark and mark[1].startswith(fence):
                fence = None
            continue
        if mark:
            fence = mark[1]
            continue
        indented = line.startswith(("    ", "\t")) and (indented or blank_before)
        blank_before = not line.strip()
        if not indented:
            yield number, line


def may_be_long(line):
    text = re.sub(r"^\s*(?:[-*>]|\d+\.)?\s*", "", line)
    one_link = re.fullmatch(r"!?\[[^\]]*\]\([^)]*\)[.,;:]?", text)
    return text.startswith(("|", "<")) or one_link or " " not in text


def too_long(text):
    for number, line in prose_lines(text):
        if len(line) > WIDTH and not may_be_long(line):
            yield number, f"{len(line)} columns: wrap prose at {WIDTH}"


def anchors(page):
    """As GitHub makes them of headings."""
    found = set()
    for _, line in prose_lines(page.read_text()):
        if heading := re.match(r"#+\s+(.*)", line):
            found.add(re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-"))
    return found


def broken(root, file, text):
    """Links of a page, and pages named in any file."""
    targets = [(m.start(), root, m[1] or m[3], m[2]) for m in NAMED.finditer(text)]
    if file.suffix == ".md":
        for m in LINK.finditer(text):
            if not re.match(r"\w+:", m[1]):
                path, _, anchor = m[1].partition("#")
                targets.append((m.start(), file.parent, path or file.name, anchor and "#" + anchor))
    for start, folder, path, anchor in targets:
        number = text.count("\n", 0, start) + 1
        target = folder / path.rstrip(".,;:")
        if not target.exists():
            yield number, f"{path} does not exist"
        elif anchor and target.suffix == ".md" and anchor[1:] not in anchors(target):
            yield number, f"{path} has no heading {anchor}"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    files = tracked(root)
    found = 0
    for file in files:
        text = file.read_text(errors="replace")
        findings = list(broken(root, file, text)) + (list(too_long(text)) if file.suffix == ".md" else [])
        for number, what in sorted(set(findings)):
            print(f"{file.relative_to(root)}:{number}: {what}")
            found += 1
    print(f"prose: {found or 'no'} findings in {len(files)} files")
    sys.exit(1 if found else 0)


main()
