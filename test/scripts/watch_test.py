"""The page of `stagecraft watch` and `stagecraft report --html` in a real browser, Debian's Chromium."""

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from places import BUILD, ENVIRONMENT, SOURCE

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium")
PLANNER = BUILD / "planner" / "stagecraft"
STAGECRAFT = str(PLANNER if PLANNER.exists() else BUILD / "stagecraft")
FINISHED = SOURCE / "test/data/run"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")


def line(step, ms=10.0, **more):
    record = {"step": step, "validation": False, "loss": 2.0 / step, "gradient_norm": 1.5, "skipped": False}
    return (
        json.dumps({**record, "learning_rate": 0.1, "ms": ms, "samples_per_second": 100.0, **more}).encode()
        + b"\n"
    )


class Run:
    """A run directory made by hand, of a run that this process is."""

    def __init__(self, root):
        self.root = Path(root)
        (self.root / "logs").mkdir(parents=True)
        shutil.copy(FINISHED / "plan.json", self.root)
        (self.root / "config.json").write_text('{"train_steps": 100}')
        space = Path("/proc/self/ns/pid").readlink()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        (self.root / ".lock").write_text(f"Stagecraft run.0\n{os.getpid()} here {boot}/{space} session.0\n")

    def steps(self, first, last, **more):
        with open(self.root / "metrics.jsonl", "ab") as file:
            file.writelines(line(step, **more) for step in range(first, last + 1))

    def restart(self, step):
        """What a session leaves that goes on from a checkpoint."""
        path = self.root / "metrics.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:step]))
        who = "[2026-11-28 20:34:50.740] [rank 0: stage 0] [info] "
        with open(self.root / "logs/rank-0.log", "a") as file:
            file.write(f"{who}rank 0: stage 0 of 2 over local, 1 threads\n" * 2)
            file.write(f"{who}state of step {step} from /x/checkpoints/step-{step:08}\n")


@pytest.fixture
def watch():
    """Starts `stagecraft watch`, and ends it."""
    started = []

    def start(*arguments):
        command = [STAGECRAFT, "watch", *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT))
        return started[-1].stdout.readline().strip()

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        process.stdout.close()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser):
    """opened(address, ...): a page, which asks nothing of elsewhere. It says nothing wrong unless its server
    `fails`."""
    pages, complaints = [], []

    def open_page(address, width=1400, scheme="light", fails=False):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        pages.append(page)
        here = address if address.startswith("http") else "file://"
        page.on(
            "request",
            lambda request: (
                complaints.append(request.url) if not request.url.startswith((here, "data:")) else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                complaints.append(message.text)
                if not fails and message.type in ("error", "warning")
                else None
            ),
        )
        page.goto(address)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []


def figure(page, term, run=0):
    return page.locator(".run").nth(run).locator(f"dt:text-is('{term}') + dd")


def expect(locator):
    return sync_api.expect(locator)


def test_it_follows_a_run_from_before_its_beginning_through_a_restart_to_its_end(tmp_path, watch, opened):
    root = tmp_path / "run"
    page = opened(watch(root))
    phase = page.locator(".phase")
    expect(phase).to_contain_text("not begun")
    expect(page.locator("#memory")).to_contain_text("Not known yet")

    run = Run(root)
    run.steps(1, 40)
    expect(phase).to_contain_text("running")
    expect(figure(page, "Step")).to_have_text("40 of 100")
    expect(figure(page, "Time left")).to_have_text("1 s")
    expect(page.locator("#shares")).to_contain_text("Not known yet: a run writes its timeline when it ends")
    expect(page.locator("#memory")).to_contain_text("1.8 KiB proved, measured: not known yet")
    expect(page.locator("#timeline canvas")).to_have_attribute(
        "aria-label", re.compile("as the plan's costs predict it.*2 ranks")
    )
    expect(page.locator("#chart-loss [role=img]")).to_have_attribute(
        "aria-label", re.compile("steps 1 to 40")
    )

    run.restart(20)
    run.steps(21, 30, ms=12.0)
    expect(figure(page, "Step")).to_have_text("30 of 100")
    expect(figure(page, "Restarts")).to_have_text("1")
    expect(page.locator("#marks")).to_contain_text("restarts at step 20 (dashed)")
    assert page.evaluate("shown.runs[0].series.ms") == [10] * 20 + [12] * 10

    run.steps(31, 100)
    for name in ("summary.json", "timeline.json"):
        shutil.copy(FINISHED / name, root)
    expect(phase).to_contain_text("finished")
    expect(page.locator("#shares .bar").first).to_have_attribute(
        "aria-label", re.compile("forward 1.*wait for gradient")
    )
    expect(page.locator("#memory")).to_contain_text("1.8 KiB of 1.8 KiB proved")
    expect(page.locator("#timeline")).to_contain_text("Measured, steps 5 to 6")


def test_a_server_that_is_gone_is_told_and_what_it_said_stays(tmp_path, opened):
    Run(tmp_path / "run").steps(1, 5)
    process = subprocess.Popen([STAGECRAFT, "watch", tmp_path / "run"], stdout=subprocess.PIPE, text=True)
    with process:
        page = opened(process.stdout.readline().strip(), fails=True)
        expect(figure(page, "Step")).to_have_text("5 of 100")
        process.terminate()
    expect(page.locator("#link")).to_contain_text("no answer for")
    expect(figure(page, "Step")).to_have_text("5 of 100")


def test_names_are_shown_as_text(tmp_path, watch, opened):
    name = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
    runs = [Run(tmp_path / (name.replace("/", "|") + end)) for end in ("1", "2")]
    for run in runs:
        run.steps(1, 3)
        plan = json.loads((run.root / "plan.json").read_text())
        (run.root / "plan.json").write_text(json.dumps({**plan, "model": name}))
    page = opened(watch(*(run.root for run in runs)))
    expect(page.locator(".run .name").first).to_contain_text("<script>document.title='taken'<|script>")
    expect(page.locator("#plan")).to_contain_text(name)
    assert page.title().startswith("<script>") and page.locator("img").count() == 0


def test_runs_stand_beside_each_other(tmp_path, watch, opened):
    runs = [Run(tmp_path / name) for name in ("one", "two")]
    runs[0].steps(1, 10)
    runs[1].steps(1, 20)
    page = opened(watch(*(run.root for run in runs)))
    expect(figure(page, "Step", 1)).to_have_text("20 of 100")
    expect(page.locator("#chart-loss .u-legend")).to_contain_text("two")
    page.get_by_role("radio").nth(1).check()
    expect(page.locator("#marks")).to_contain_text("Marks of two")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_a_report_is_the_same_page_at_any_width_and_theme(tmp_path, opened, width, scheme):
    html = tmp_path / "report.html"
    subprocess.run([STAGECRAFT, "report", FINISHED, "--html", html], check=True, stdout=subprocess.DEVNULL)
    page = opened(f"file://{html}", width, scheme)
    expect(page.locator(".phase")).to_contain_text("finished")
    expect(page.locator("#link")).to_contain_text("as of")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    # Texts stand out from what is behind them (WCAG's 4.5).
    assert page.evaluate(CONTRASTS) == []
    for place in page.locator(".chart, .bar, canvas, .held").all():
        box = place.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width


CONTRASTS = """() => {
  const light = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(Number)
    .map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (color !== "rgba(0, 0, 0, 0)") return color;
    }
    return "rgb(255, 255, 255)";
  };
  const low = [];
  for (const element of document.querySelectorAll(
      "p, dt, dd, h1, h2, h3, li, span, small, th, td, i, button:not([disabled]), summary")) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push(element.textContent);
  }
  return low;
}"""


def test_numbers_keep_the_zeros_that_they_end_with(tmp_path, opened):
    html = tmp_path / "report.html"
    subprocess.run([STAGECRAFT, "report", FINISHED, "--html", html], check=True, stdout=subprocess.DEVNULL)
    numbers = "[0, 5, 100, 2000, 12340, 0.25, 1940.4, 2e6, 1e-7, null]"
    shown = opened(f"file://{html}").evaluate(f"{numbers}.map((number) => digits(number, 4))")
    assert shown == ["0", "5", "100", "2000", "12340", "0.25", "1940", "2000000", "1e-7", "\u2013"]


def test_charts_and_timeline_are_used_by_keyboard(tmp_path, opened):
    html = tmp_path / "report.html"
    subprocess.run([STAGECRAFT, "report", FINISHED, "--html", html], check=True, stdout=subprocess.DEVNULL)
    page = opened(f"file://{html}")
    chart = page.locator("#chart-loss [role=img]")
    chart.focus()
    page.keyboard.press("Home")
    expect(page.locator("#chart-loss .u-legend")).to_contain_text("1.8953")
    page.keyboard.press("+")
    assert page.evaluate("charts[0].plot.scales.x.max") < 6
    page.keyboard.press("0")
    assert page.evaluate("charts[0].plot.scales.x.max") == 6
    canvas = page.locator("#timeline canvas")
    canvas.focus()
    page.keyboard.press("+")
    assert page.evaluate("timeline.span < timeline.length")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#pointed")).to_contain_text("rank 1: stage 1: ")
    for _ in range(2):
        page.keyboard.press(".")
    expect(page.locator("#pointed")).to_contain_text("forward 0, stage 1: ")
    page.get_by_role("button", name="as planned").press("Enter")
    expect(page.locator("#timeline .note")).to_contain_text("as the plan's costs predict it")


def test_watching_for_long_holds_no_more_memory(tmp_path, watch, opened):
    """As many answers as in six minutes, in seconds."""
    run = Run(tmp_path / "run")
    run.steps(1, 500)
    page = opened(watch(run.root))
    expect(figure(page, "Step")).to_have_text("500 of 100")
    held = []
    session = page.context.new_cdp_session(page)
    for _ in range(3):
        page.evaluate("for (let i = 0; i < 80; ++i) { merge(structuredClone(shown)); show(i % 10 === 0); }")
        session.send("HeapProfiler.collectGarbage")
        counts = session.send("Memory.getDOMCounters")
        heap = session.send("Runtime.getHeapUsage")["usedSize"]
        held.append((counts["nodes"], counts["jsEventListeners"], heap))
    assert held[2][0] <= held[1][0] * 1.02 + 50 and held[2][1] <= held[1][1] + 5
    assert held[2][2] <= held[1][2] + 2_000_000


def answer(address, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_who_does_not_have_the_address_gets_nothing(watch):
    address = watch(FINISHED)
    root, token = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)([0-9a-f]{32})/", address).groups()
    port = root.split(":")[2].rstrip("/")
    code, headers, body = answer(address + "data")
    assert code == 200 and json.loads(body)["runs"][0]["plan"]["schedule"] == "1f1b"
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    other = token[:-1] + ("0" if token[-1] != "0" else "1")
    for wrong in (
        root,
        root + "data",
        f"{root}{other}/",
        f"{root}{token[:-1]}/data",
        f"{root}{token}x/data",
        f"{root}x/{token}/",
    ):
        assert answer(wrong)[0] == 403, wrong
    # A page of elsewhere whose name was rebound to this machine.
    assert answer(address, Host=f"evil.example:{port}")[0] == 403
    assert answer(address, Host=f"localhost:{port}")[0] == 200
    assert answer(address + "../../etc/passwd")[0] in (403, 404)
    with open("/proc/net/tcp") as table:
        listening = [
            row.split()[1] for row in table if f":{int(port):04X} " in row and row.split()[3] == "0A"
        ]
    assert listening == [f"0100007F:{int(port):04X}"]


def test_bad_input_is_told(tmp_path):
    def said(*arguments):
        done = subprocess.run(
            [STAGECRAFT, "watch", *map(str, arguments)], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    file = tmp_path / "file"
    file.write_text("")
    assert said(file) == (2, f"stagecraft: {file}: is no folder, and so no run's\n")
    code, text = said(tmp_path)
    assert code == 2 and text.startswith(
        f"stagecraft: {tmp_path}: is a folder with nothing of a run in it"
    ), text
    # A run may have the name of what runs write.
    for name in ("live", "logs", "checkpoints"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("{}")
    for form in ((), ("--json",), ("--tui",)):
        code, text = said(tmp_path, *form)
        assert code == 2 and text.startswith(
            f"stagecraft: {tmp_path}: is a folder with nothing of a run in it; expected run directories, such"
            f" as {tmp_path}/checkpoints {tmp_path}/live"
        ), text
    run = tmp_path / "run"
    code, text = said(run, "--port", "70000")
    assert code == 2 and "--port" in text
    taken = subprocess.Popen([STAGECRAFT, "watch", run], stdout=subprocess.PIPE, text=True)
    with taken:
        port = taken.stdout.readline().split(":")[2].split("/")[0]
        code, text = said(run, "--port", port)
        assert code == 2 and f"--port {port}: cannot be used on 127.0.0.1" in text
        taken.terminate()


def test_the_terminal_is_drawn_anew_until_a_signal(tmp_path):
    run = Run(tmp_path / "run")
    run.steps(1, 3)
    once = subprocess.run(
        [STAGECRAFT, "watch", run.root, "--tui"], check=True, capture_output=True, text=True
    )
    assert "step 3 of 100" in once.stdout and "\x1b" not in once.stdout
    ours, theirs = os.openpty()
    with subprocess.Popen([STAGECRAFT, "watch", run.root, "--tui"], stdout=theirs) as process:
        os.close(theirs)
        seen = b""
        while b"step 3 of 100" not in seen:
            seen += os.read(ours, 4096)
        run.steps(4, 5)
        while b"step 5 of 100" not in seen:
            seen += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
    os.close(ours)
    assert process.returncode == 0


def test_a_run_that_trains_is_followed(tmp_path, watch, opened):
    trainer = BUILD / "stagecraft"
    if (
        not trainer.exists()
        or subprocess.run([trainer, "train", "--help"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no engine")
    config = json.loads((FINISHED / "config.json").read_text())
    config.update(run_dir="run", train_steps=30)
    (tmp_path / "run.json").write_text(json.dumps(config))
    page = opened(watch(tmp_path / "run"))
    with subprocess.Popen(
        [trainer, "train", "run.json"], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    ):
        expect(page.locator(".phase")).to_contain_text("running", timeout=20_000)
        at = int(figure(page, "Step").text_content().split()[0])
        expect(figure(page, "Step")).not_to_have_text(f"{at} of 30")
        assert int(figure(page, "Step").text_content().split()[0]) > at
    expect(page.locator(".phase")).to_contain_text("finished")
    expect(figure(page, "Step")).to_have_text("30 of 30")
