"""scripts/docs.sh makes a site of docs/ that is whole, and opens from its folder with no network."""

import ast
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from places import SOURCE

# What a browser loads with a page, in its HTML, its styles and its scripts' own words.
LOADED = re.compile(r"""<(?:script|img|iframe|source|embed|object)\b[^>]*?\b(?:src|data)=["']?([^"'\s>]+)""")
LINKED = re.compile(r"<link\b[^>]*>")
OF_STYLES = re.compile(r"""(?:url\(|@import )["']?([^"')\s]+)""")


def docs_sh(root, folder, **options):
    command = [str(root / "scripts/docs.sh"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, **options)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("of") / "site"
    made = docs_sh(SOURCE, folder)
    if "run scripts/setup.sh --docs" in made.stderr:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def loads(file):
    """What a page or a style loads besides itself."""
    text = file.read_text(errors="replace")
    if file.suffix == ".css":
        return OF_STYLES.findall(text)
    links = [
        link
        for link in LINKED.findall(text)
        if re.search(r"rel=[\"']?(?:stylesheet|icon|preload|modulepreload)", link)
    ]
    return LOADED.findall(text) + [re.search(r"""href=["']?([^"'\s>]+)""", link)[1] for link in links]


def test_nothing_comes_from_another_host(site):
    files = [file for file in site.rglob("*") if file.suffix in {".html", ".css"}]
    assert len([file for file in files if file.suffix == ".html"]) > 60
    lacking = []
    for file in files:
        for loaded in map(html.unescape, loads(file)):
            if loaded.startswith(("data:", "javascript:", "#")):
                continue
            path = unquote(re.sub(r"[?#].*", "", loaded))
            if re.match(r"(\w+:)?//", loaded) or not (file.parent / path).exists():
                lacking.append(f"{file.relative_to(site)}: {loaded}")
    assert not lacking


def test_each_page_is_in_the_navigation_and_in_the_search(site):
    sources = {path.relative_to(SOURCE / "docs") for path in (SOURCE / "docs").rglob("*.md")} - {
        Path("README.md")
    }
    pages = {path.with_suffix(".html").as_posix() for path in sources}
    front = (site / "index.html").read_text()
    navigation = front[
        front.index('data-md-type="navigation"') if 'data-md-type="navigation"' in front else 0 :
    ]
    assert pages <= set(re.findall(r'href="([^"#]+)" class="md-nav__link', navigation))
    index = (site / "search/search_index.js").read_text()
    found = {entry["location"] for entry in json.loads(index.removeprefix("var __index = "))["docs"]}
    assert pages <= found


@pytest.mark.parametrize(
    ("package", "page"), [("stagecraft", "python"), ("stagecraft_planner", "python_planner")]
)
def test_the_reference_has_all_names(site, package, page):
    module = ast.parse((SOURCE / f"python/{package}/__init__.py").read_text())
    (names,) = [n.value for n in module.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__"]
    of_planner = (site / "reference/python_planner.html").read_text()
    text = (site / f"reference/{page}.html").read_text() + of_planner
    lacking = [
        name for name in ast.literal_eval(names) if not re.search(rf'id="stagecraft[\w.]*\.{name}"', text)
    ]
    assert not lacking


def test_headers_that_pages_name_have_pages(site):
    if not shutil.which("doxygen"):
        pytest.skip("no doxygen (scripts/setup.sh --docs)")
    guide = (site / "guides/library.html").read_text()
    named = re.findall(r"<code>stagecraft/[\w/]+/(\w+)\.h</code>", guide)
    linked = re.findall(r'href="\.\./cpp/(\w+)_8h\.html"><code>', guide)
    assert len(named) > 5 and {name.replace("_", "__") for name in named} == set(linked)
    assert "smallest unit a model can be cut between" in (site / "cpp/layer_8h.html").read_text()


@pytest.fixture
def small(tmp_path, site):
    """A tree of two pages."""
    for name in (
        "scripts/docs",
        "scripts/docs.sh",
        "scripts/environment.sh",
        "mkdocs.yml",
        "cmake/StagecraftInstall.cmake",
    ):
        copy = shutil.copytree if (SOURCE / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(SOURCE / name, tmp_path / name)
    (tmp_path / "python/stagecraft_tools").mkdir(parents=True)
    shutil.copy(SOURCE / "python/stagecraft_tools/torch_versions.txt", tmp_path / "python/stagecraft_tools")
    (tmp_path / "docs").mkdir()
    name = page_of(Path()).as_posix()  # in two pieces, so that no check looks for it here
    (tmp_path / "README.md").write_text(f"# Top\n\n[all](docs/README.md) [a]({name}#part)\n")
    (tmp_path / "docs/README.md").write_text("# Pages\n\n## Some\n\n- [A](page.md): a page\n")
    page_of(tmp_path).write_text("# A\n\n[a script](../scripts/docs.sh)\n\n## Part\n")
    return tmp_path


def page_of(small, name="page"):
    return small / "docs" / f"{name}.md"


def test_what_leads_nowhere_is_refused(small):
    folder = small / "site"
    made = docs_sh(small, folder)
    assert made.returncode == 0, made.stdout + made.stderr
    script = (folder / "repository/scripts/docs.sh.html").read_text()
    assert "set -euo pipefail" in html.unescape(re.sub(r"<[^>]+>", "", script))
    fine = page_of(small).read_text()
    for name, text, said in [
        ("page", "# A\n\n[gone](gone.md)\n\n## Part\n", "gone.md"),
        ("page", "# A\n\n[gone](../scripts/gone.py)\n\n## Part\n", "gone.py"),
        ("page", "# A\n\n## Other part\n", "#part"),
        ("left_out", "# B\n", "left_out.md"),
    ]:
        page_of(small, name).write_text(text)
        made = docs_sh(small, folder)
        assert made.returncode == 1 and said in made.stdout + made.stderr, made.stdout + made.stderr
        assert (folder / "page.html").exists()  # the site of before stays
        page_of(small).write_text(fine)


def test_items_hold_what_stands_under_their_text(small):
    text = "# A\n\n1. one\n\n   ```\n   code\n     more\n   ```\n\n2. two\n   - within\n\nbehind\n\n## Part\n"
    page_of(small).write_text(text)
    assert docs_sh(small, small / "site").returncode == 0
    page = (small / "site/page.html").read_text()
    (listed,) = re.findall(r"<ol>.*</ol>", page, re.DOTALL)
    assert "code\n  more" in re.sub(r"<[^>]+>", "", listed) and "<ul>\n<li>within" in listed
    assert "behind" not in listed and "behind" in page


def test_a_folder_of_other_things_is_left_alone(small):
    (small / "mine").mkdir()
    (small / "mine/notes.txt").write_text("mine")
    made = docs_sh(small, small / "mine")
    assert made.returncode == 2 and "holds other things than a site" in made.stderr
    assert [path.name for path in (small / "mine").iterdir()] == ["notes.txt"]


def test_the_search_works_from_the_folder(site):
    sync_api = pytest.importorskip("playwright.sync_api", reason="scripts/setup.sh --browser installs it")
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("no chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, asked = browser.new_page(), []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: asked.append(str(error)))
        page.goto((site / "reference/limits.html").as_uri())
        page.wait_for_selector("iframe", state="attached")  # the page's script has begun, and listens
        page.click("input.md-search__input")
        page.wait_for_selector("text=Type to start searching")
        page.keyboard.type("staleness")
        page.wait_for_selector(".md-search-result__item")
        assert "Glossary" in page.inner_text(".md-search-result__list")
        browser.close()
    assert [what for what in asked if not what.startswith(("file:", "data:", "blob:", "about:"))] == []
