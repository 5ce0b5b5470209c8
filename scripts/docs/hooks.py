"""What turns docs/ into a site, beside mkdocs' own: a hook of mkdocs.yml.

1. The navigation is docs/README.md: its sections and links, in their order. 2. The front page is the
README. 3. Links lead out of docs/ to scripts, examples and sources: each such file gets a page of its own
under repository/, a notebook as cells, a folder as a list. 4. The public headers' pages (Doxygen's, in
STAGECRAFT_DOCS_CPP) go under cpp/, and code that names such a header links to its page.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import notebook_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
CONTENTS = "docs/README.md"
FRONT = "README.md"
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
HEADER = re.compile(r"`stagecraft/([\w/]+)\.h`(?!\])")
FENCE = re.compile(r"\s*(```+|~~~+)")
ITEM = re.compile(r"(?:[-*]|\d+\.) +")
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".txt": "cmake", ".py": "python", ".sh": "bash", ".sbatch": "bash"}
LARGEST_PAGE = 50_000  # bytes: larger files are there as they are, not as a page

pages: dict[str, str] = {}  # of a file of the repository: its page's path in the site
origins: dict[str, str] = {}  # the other way


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = list(navigation())
    return config


def navigation() -> Iterator[dict]:
    yield {"Stagecraft": "index.md"}
    for section in re.split(r"^## ", (ROOT / CONTENTS).read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        links = re.findall(r"^(?:-|\d+\.) \[([^\]]+)\]\(([^)#\s]+)\)", text, re.MULTILINE)
        entries = [{" ".join(name.split()): page_of(link)} for name, link in links]
        if title == "Reference" and "STAGECRAFT_DOCS_CPP" in os.environ:
            entries.append({"C++ headers": "cpp/index.html"})
        yield {title: entries}
    yield {"All pages": page_of("README.md")}


def page_of(link: str) -> str:
    """Of a link in the table of contents."""
    return site_path(posixpath.normpath(posixpath.join("docs", link)))


def site_path(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path == FRONT:
        return "index.md"
    if path == CONTENTS:
        return "pages.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    file = ROOT / path
    if file.suffix == ".md" or (file.is_file() and not is_page(file)):
        return f"repository/{path}"
    return f"repository/{path}.md"


def is_page(file: Path) -> bool:
    return file.suffix == ".ipynb" or file.stat().st_size <= LARGEST_PAGE


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of docs/, and what their links reach outside of it."""
    pages.clear()
    for file in list(files.documentation_pages()):
        pages[f"docs/{file.src_uri}"] = file.src_uri
    files.remove(files.get_file_from_path("README.md"))
    waiting = [FRONT, *pages]
    for path in waiting:
        pages[path] = site_path(path)
        found = {target for target, _ in targets(path)} if path.endswith(".md") else set(members(path))
        waiting += sorted(found - set(waiting))
    for path in waiting:
        if not files.get_file_from_path(pages[path]):
            files.append(made(path, config))
    origins.update({page: path for path, page in pages.items()})
    if made_by_doxygen := os.environ.get("STAGECRAFT_DOCS_CPP"):
        for file in sorted(p for p in Path(made_by_doxygen).rglob("*") if p.is_file()):
            name = f"cpp/{file.relative_to(made_by_doxygen).as_posix()}"
            files.append(File.generated(config, name, abs_src_path=str(file)))
    return files


def members(path: str) -> list[str]:
    """The files of a folder, as git has them; without git, all."""
    if not (ROOT / path).is_dir():
        return []
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", path], capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        return listed.stdout.split()
    return sorted(str(file.relative_to(ROOT)) for file in (ROOT / path).rglob("*") if file.is_file())


def targets(path: str) -> Iterator[tuple[str, str]]:
    """Files and folders of the repository, outside of docs/, that a page links to."""
    for line in (ROOT / path).read_text().splitlines():
        for link in LINK.findall(line):
            target, anchor = resolved(path, link)
            if target and not target.startswith("docs/") and (ROOT / target).exists():
                yield target, anchor


def resolved(path: str, link: str) -> tuple[str, str]:
    """The file that a page's link names, and the anchor; "" for what is none of the repository."""
    if re.match(r"\w+:", link):
        return "", ""
    target, _, anchor = link.partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) if target else path, anchor


def made(path: str, config: MkDocsConfig) -> File:
    """The page of a file outside of docs/, or that file itself."""
    file, name = ROOT / path, pages[path]
    if not name.endswith(".md"):
        return File.generated(config, name, abs_src_path=str(file))
    if file.suffix == ".md":
        text = file.read_text()
    elif file.suffix == ".ipynb":
        text = notebook_pages.page(executed(file))
    elif file.is_dir():
        links = [(member, posixpath.relpath(member, posixpath.dirname(path))) for member in members(path)]
        text = f"# {path}\n\n" + "".join(f"- [{member}]({link})\n" for member, link in links)
    else:
        text = of_source(path, file)
    return File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV)


def executed(notebook: Path) -> Path:
    """With its outputs, where scripts/docs.sh has run it."""
    run = Path(os.environ.get("STAGECRAFT_DOCS_NOTEBOOKS", "/nowhere")) / notebook.name
    return run if run.is_file() else notebook


def of_source(path: str, file: Path) -> str:
    text = file.read_text().rstrip("\n")
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall(r"`{3,}", text))])
    language = LANGUAGES.get(file.suffix, file.suffix[1:] or "text")
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{fence}{language}\n{text}\n{fence}\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to where the site has what they name."""
    here = origins.get(page.file.src_uri)
    if not here or Path(here).suffix not in {".md", ".ipynb", ""}:
        return markdown

    def linked(found: re.Match[str]) -> str:
        target, anchor = resolved(here, found[0])
        if not target or target == here or not (ROOT / target).exists():
            return found[0]
        there = posixpath.relpath(site_path(target), posixpath.dirname(page.file.src_uri) or ".")
        return there + (f"#{anchor}" if anchor else "")

    def with_header(found: re.Match[str]) -> str:
        name = f"{found[1].rsplit('/', 1)[-1].replace('_', '__')}_8h.html"
        if not files.get_file_from_path(f"cpp/{name}"):
            return found[0]
        return (
            f"[{found[0]}]({posixpath.relpath(f'cpp/{name}', posixpath.dirname(page.file.src_uri) or '.')})"
        )

    return "\n".join(
        line if code else HEADER.sub(with_header, LINK.sub(linked, line)) for code, line in indented(markdown)
    )


def indented(markdown: str) -> Iterator[tuple[bool, str]]:
    """The lines, and which are code. What belongs to an item of a list stands under its text, as everywhere;
    Python's Markdown wants it four columns further in per level."""
    fence = ""
    levels: list[int] = []
    for line in markdown.split("\n"):
        text = line.lstrip(" ")
        column = len(line) - len(text)
        while text and not fence and levels and column < levels[-1]:
            levels.pop()
        inside = max(0, column - levels[-1]) if levels else column
        mark = FENCE.match(line)
        yield bool(fence or mark), " " * (4 * len(levels) + inside) + text if text else ""
        if fence or mark:
            opened = mark[1] if mark else ""
            fence = ("" if opened.startswith(fence) else fence) if fence else opened
        elif item := ITEM.match(text):
            levels.append(column + item.end())
