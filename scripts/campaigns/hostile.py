"""A file of a real run is changed, of those kept in test/data/runs or of what it was made from, and what
reads it is started: report, its page, export, a resume, a run that begins with the checkpoint. Each has to do
its work or to end with exit code 2 or 3 and a line, within seconds, and with little more memory than for the
files as they were. In most checkpoints hashes are made to fit, so that changes are read and not noticed."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from .changes import change_file
from .server import Server
from .trial import Wrong

SECONDS = 60  # of one start
MORE_MEMORY = 192 * 1024  # KiB
READERS = {
    "report": ["report", "run"],
    "page": ["report", "run", "--html", "page.html"],
    "export": ["export", "run", "-o", "exported"],
    "resume": ["train", "run.json", "--resume"],
    "initial": ["train", "fresh.json"],
    "dry": ["train", "run.json", "--resume", "--dry-run"],
}
MADE = ("exported", "page.html", "fresh")


class Campaign:
    def __init__(self, folder: Path, command: str, until: float) -> None:
        self.folder = folder / "now"
        self.folder.mkdir()
        build = Path(command).parent
        os.environ["STAGECRAFT_BUILD"] = str(build)
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test/scripts"))
        import kept_runs

        self.kept = kept_runs
        self.generation = max(kept_runs.KEPT.glob("format_*"))
        self.servers = {name: Server(command, words, self.folder, SECONDS) for name, words in READERS.items()}
        self.usual: dict[tuple[str, str], int] = {}
        self.forge = subprocess.Popen(
            [build / "test/faults/forge_hashes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def fresh_files(self, run: str) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.kept.prepare(run, self.folder)
        self.kept.unpack(self.generation / f"{run}.tar.gz", self.folder)
        checkpoint = self.kept.newest_checkpoint(self.folder / "run").relative_to(self.folder)
        fresh = self.kept.config(run) | {"run_dir": "fresh", "initial_checkpoint": str(checkpoint)}
        (self.folder / "fresh.json").write_text(json.dumps(fresh | {"train_steps": 2}))

    def make_hashes_fit(self) -> None:
        assert self.forge.stdin is not None and self.forge.stdout is not None
        checkpoint = self.kept.newest_checkpoint(self.folder / "run")
        self.forge.stdin.write(f"{checkpoint}\n")
        self.forge.stdin.flush()
        self.forge.stdout.readline()

    def usual_peak(self, run: str, reader: str) -> int:
        if (run, reader) not in self.usual:
            self.fresh_files(run)
            ended = self.servers[reader].run()
            ended.code(f"{run}, {reader}: nothing is changed", {0})
            self.usual[run, reader] = ended.peak
        return self.usual[run, reader]

    def trial(self, seed: int) -> tuple[str, Counter[str]]:
        choose = random.Random(seed)
        run = choose.choice(sorted(self.kept.RUNS))
        reader = choose.choice([name for name in READERS if name != "dry"])
        usual = self.usual_peak(run, reader)
        self.fresh_files(run)
        files = sorted(
            path for path in self.folder.rglob("*") if path.is_file() and path.name != "fresh.json"
        )
        weights = [8 if path.name in ("manifest.json", "run.json") else 1 for path in files]
        path = choose.choices(files, weights)[0]
        if path.name == "run.json":  # which may ask for years of training
            reader, usual = "dry", self.usual_peak(run, "dry")
            self.fresh_files(run)
        change_file(path, choose)
        forged = "checkpoints" in path.parts and choose.random() < 0.7
        if forged:
            self.make_hashes_fit()
        where = (
            f"{run}, {reader}: {path.relative_to(self.folder)} is changed{' with its hash' if forged else ''}"
        )
        ended = self.servers[reader].run()
        code = ended.code(where, {0, 2, 3})
        if ended.peak > usual + MORE_MEMORY:
            raise Wrong(f"{where}, and it takes {ended.peak} KiB, not {usual}")
        return reader, Counter({"files": 1, f"ended with {code}": 1})
