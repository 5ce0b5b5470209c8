"""Watches a real run in a browser for as long as asked: `stagecraft watch` and Chromium, while the run
trains, is killed in the middle and goes on. Prints what page and server hold, every few minutes; a leak
would show as growth.

    scripts/setup.sh --browser
    ~/.cache/stagecraft/venv-*/bin/python scripts/bench/watch_hour.py --minutes 60 [--pictures FOLDER]

The run has the lowest priority, so that the machine can be used meanwhile.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright import sync_api

SOURCE = Path(__file__).resolve().parents[2]


def resident(process: subprocess.Popen) -> float:
    """MiB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


class Watched:
    def __init__(self, command: str, folder: Path, width: int):
        self.run_dir = folder / "run"
        self.train = [command, "train", "configs/quickstart_gpt.json", "--resume"]
        for setting in ("train_steps=1000000", "threads_per_rank=1", "checkpoint.every_steps=200"):
            self.train += ["--set", setting]
        self.train += ["--set", f"run_dir={self.run_dir}"]
        self.server = subprocess.Popen(
            [command, "watch", self.run_dir], stdout=subprocess.PIPE, text=True, cwd=SOURCE
        )
        assert self.server.stdout is not None
        self.address = self.server.stdout.readline().strip()
        self.run = self.start()

    def start(self) -> subprocess.Popen:
        return subprocess.Popen(["nice", "-n", "19", *self.train], cwd=SOURCE, stdout=subprocess.DEVNULL)

    def kill_and_go_on(self) -> None:
        self.run.kill()
        self.run.wait()
        self.run = self.start()

    def close(self) -> None:
        for process in (self.run, self.server):
            process.send_signal(signal.SIGKILL)
            process.wait()


def pictures(page: sync_api.Page, folder: Path | None, name: str) -> None:
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=folder / f"{name}.png", full_page=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=300, help="seconds from one line to the next")
    parser.add_argument("--pictures", type=Path, help="screenshots go there: before and behind the restart")
    parser.add_argument("--build", type=Path, default=SOURCE / "build", help="folder with stagecraft")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, sync_api.sync_playwright() as playwright:
        watched = Watched(str((options.build / "stagecraft").absolute()), Path(scratch), 1400)
        try:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.goto(watched.address)
            session = page.context.new_cdp_session(page)
            begin = time.monotonic()
            killed = False
            print("minute   step                     nodes  listeners  heap MiB  server MiB")
            while (minutes := (time.monotonic() - begin) / 60) < options.minutes:
                time.sleep(options.every)
                session.send("HeapProfiler.collectGarbage")
                counts = session.send("Memory.getDOMCounters")
                heap = session.send("Runtime.getHeapUsage")["usedSize"] / 2**20
                step = page.locator("dt:text-is('Step') + dd").first.inner_text()
                minutes = (time.monotonic() - begin) / 60
                print(
                    f"{minutes:6.1f}   {step:<24} {counts['nodes']:5}  {counts['jsEventListeners']:9}"
                    f"  {heap:8.1f}  {resident(watched.server):10.1f}",
                    flush=True,
                )
                if not killed and minutes > options.minutes / 2:
                    pictures(page, options.pictures, "before")
                    watched.kill_and_go_on()
                    killed = True
                    print("         killed (SIGKILL), and goes on with --resume", flush=True)
            pictures(page, options.pictures, "restarted")
            page.set_viewport_size({"width": 400, "height": 900})
            page.emulate_media(color_scheme="dark")
            pictures(page, options.pictures, "restarted-400-dark")
            page.set_viewport_size({"width": 1400, "height": 900})
            page.emulate_media(color_scheme="light")
            for eye in ("protanopia", "deuteranopia", "tritanopia", "achromatopsia"):
                session.send("Emulation.setEmulatedVisionDeficiency", {"type": eye})
                pictures(page, options.pictures, eye)
            browser.close()
        finally:
            watched.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
