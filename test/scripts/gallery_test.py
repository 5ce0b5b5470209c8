"""The pages of docs/gallery run as they stand, and print what they say that they print.

Each ```bash block is run, all of a page in one shell; the block behind it is what it printed. On a page that
measures, numbers are not compared. STAGECRAFT_ACCEPT=1 writes what was printed into the pages.
"""

import os
import re
import subprocess

import pytest

from places import BUILD, SOURCE

PAGES = SOURCE / "docs/gallery"
BLOCK = re.compile(r"```bash\n(?P<code>.*?)```\n\n```\n(?P<said>.*?)```\n", re.DOTALL)
NUMBER = re.compile(r"[-+]?\d[\d.,]*")
END = "---- end of block"


@pytest.fixture
def beside(scratch):
    """An empty folder with what pages read of the repository."""
    for name in ("configs", "test"):
        (scratch / name).symlink_to(SOURCE / name)
    return scratch


def printed(page, folder, binary):
    """What each block of a page prints."""
    blocks = [found["code"] for found in BLOCK.finditer(page)]
    script = "set -euo pipefail\n" + "".join(f"{code}echo '{END}'\n" for code in blocks)
    (folder / "bin").mkdir()
    (folder / "bin/stagecraft").symlink_to(binary)
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment.pop("COLUMNS", None)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *texts, rest = done.stdout.split(f"{END}\n")
    assert len(texts) == len(blocks) > 1 and not rest
    return texts


def masked(text):
    return [re.sub(r"-{2,}", "--", " ".join(NUMBER.sub("N", line).split())) for line in text.splitlines()]


def compared(name, folder, binary, alike=lambda text: text):
    """What the blocks print, which is what the page says, or says from now on."""
    page = (PAGES / name).read_text()
    texts = printed(page, folder, binary)
    if os.environ.get("STAGECRAFT_ACCEPT"):
        found = iter(texts)
        page = BLOCK.sub(lambda block: f"```bash\n{block['code']}```\n\n```\n{next(found)}```\n", page)
        (PAGES / name).write_text(page)
    for block, text in zip(BLOCK.finditer(page), texts):
        assert alike(text) == alike(block["said"])
    return texts


@pytest.mark.parametrize("name", ["own_profile.md", "compare_schedules.md"])
def test_a_page_of_the_planner(name, beside):
    planner = BUILD / "planner/stagecraft"
    if not planner.exists():
        pytest.skip("there is no planner")
    compared(name, beside, planner)


def test_a_better_plan_is_better(beside):
    """By what the first run measured. How long the second one takes is for quiet machines to say."""
    texts = compared("better_plan.md", beside, BUILD / "stagecraft", masked)
    plans = re.findall(
        r"^  (present|planned) +2 stages, cuts (\d), ([\d.]+) ms", "".join(texts), re.MULTILINE
    )
    assert [(name, cut) for name, cut, _ in plans] == [("present", "3"), ("planned", "4")]
    assert float(plans[1][2]) < 0.95 * float(plans[0][2])


def test_each_page_is_tried():
    """own_code.md is by install_test.sh, which has what it needs."""
    names = {"own_profile.md", "compare_schedules.md", "better_plan.md", "own_code.md"}
    assert {path.name for path in PAGES.glob("*.md")} == names
    assert "own_code.md" in (SOURCE / "test/scripts/install_test.sh").read_text()
