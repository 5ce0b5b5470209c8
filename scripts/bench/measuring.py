"""What the measurements of this folder share: running stagecraft, runs that take turns, tables, medians."""

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
TURN_TIMEOUT = 600  # seconds without a step
# where not 1
STAGES_A_RANK = {
    "interleaved_1f1b": 2,
    "looped_bfs": 2,
    "interleaved_zb": 2,
    "zb_v": 2,
    "v_half": 2,
    "v_min": 2,
}
SCHEDULES = ["fill_drain", "1f1b", "zb_h1", "zb_h2", *STAGES_A_RANK, "pipedream", "2bw"]

# Ended from outside, a bench still ends the runs that it has stopped.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


def read_json(path):
    """JSON with // comments on lines of their own, as configs have them."""
    with open(path, encoding="utf-8") as file:
        return json.loads("".join(line for line in file if not line.lstrip().startswith("//")))


def text(command):
    return " ".join(map(str, command))


def run(*command):
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{text(command)}\nfailed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def describe_machine():
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load average {load:.2f}", flush=True)
    if load > 0.5:
        print("WARNING: something else is running; times are worth nothing and ratios little", flush=True)
    return {"cores": os.cpu_count(), "load_average": load}


def launch(ranks, bind):
    """The words before `stagecraft`: a launcher, or for one rank per core."""
    if ranks == 1:
        return ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if bind else []
    crowded = ranks > len(os.sched_getaffinity(0))
    return [
        "mpirun",
        "-np",
        str(ranks),
        *(["--oversubscribe"] if crowded else []),
        "--bind-to",
        "core" if bind and not crowded else "none",
    ]


def overrides(**values):
    """--set words; a double underscore is a dot."""
    return [
        word
        for key, value in values.items()
        for word in ("--set", f"{key.replace('__', '.')}={json.dumps(value)}")
    ]


class Workbench:
    """One config, its profile and plans made from it, in a folder of their own."""

    def __init__(self, binary, config, folder, bind=True, settings=None):
        self.binary, self.folder, self.bind = Path(binary), Path(folder), bind
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = {**read_json(config), **(settings or {})}
        # plans have the first, and a bench makes steps alone
        for key in ("pipeline", "epochs", "validation", "checkpoint"):
            self.config.pop(key, None)
        self.config["train_steps"] = 1
        self.base = self.folder / "config.json"
        self.base.write_text(json.dumps(self.config))
        self.profile_file = self.folder / "profile.json"
        self.micro_batch = self.config["train_micro_batch_size_per_gpu"]
        self.micro_batches = -(-self.config["train_batch_size"] // self.micro_batch)

    def profile(self, repeats, ranks=2, links=True):
        """All ranks at once, as bound as a run is. Returns the profile."""
        run(
            *launch(ranks, self.bind),
            self.binary,
            "profile",
            self.base,
            "-o",
            self.profile_file,
            "--repeats",
            repeats,
            *(["--links"] if links else []),
        )
        return json.loads(self.profile_file.read_text())

    def layers(self):
        """Of the last profile, without the loss."""
        return len(json.loads(self.profile_file.read_text())["measurements"][0]["layers"]) - 1

    def even_cuts(self, stages):
        """As a user cuts by hand: equally many blocks per stage, or where there are none layers."""
        blocks = self.config["model"].get("blocks")
        if blocks:
            # behind the embedding, two layers per block
            return [1 + 2 * (blocks * s // stages) for s in range(1, stages)]
        return [self.layers() * s // stages for s in range(1, stages)]

    def cluster(self, ranks, free):
        """One machine with as many ranks as are launched; its links as measured, or such that transfers take
        no time."""
        link = json.loads(self.profile_file.read_text()).get("link")
        link = (
            {"latency_ms": link["latency_ms"], "bytes_per_second": link["bytes_per_second"]}
            if link and not free
            else {"latency_ms": 0, "bytes_per_second": 1e18}
        )
        file = self.folder / ("free.json" if free else "cluster.json")
        file.write_text(json.dumps({"name": "bench", "levels": [{"count": ranks, "link": link}]}))
        return file

    def plan(
        self, name, schedule, ranks=2, cuts=None, widths=None, stages=None, free_links=False, recompute="none"
    ):
        """Makes a plan from the last profile, with schedule "all" the fastest of them. Returns (its file, the
        plan)."""
        file = self.folder / f"{name}.plan.json"
        chosen = ["compare", "--schedules"] if schedule == "all" else ["plan", "--schedule"]
        words = [
            *chosen,
            schedule,
            "--profile",
            self.profile_file,
            "--cluster",
            self.cluster(ranks, free_links),
            "--micro-batches",
            self.micro_batches,
            "--micro-batch-size",
            self.micro_batch,
            "-o",
            file,
        ]
        words += ["--cuts", ",".join(map(str, cuts))] if cuts else []
        words += ["--stages", stages] if stages else []
        words += ["--widths", ",".join(map(str, widths))] if widths else ["--no-replicate"]
        words += ["--recompute", recompute] if recompute != "none" else []
        run(self.binary, *words)
        return file, json.loads(file.read_text())

    def train(self, name, plan, ranks, steps=1_000_000, timeline_steps=0, **settings):
        """(command, metrics file) of a run with nothing but steps in it."""
        run_dir = self.folder / f"{name}.run"
        shutil.rmtree(run_dir, ignore_errors=True)  # of another peer's turns
        quiet = overrides(
            run_dir=str(run_dir),
            train_steps=steps,
            steps_per_print=0,
            log__timeline_steps=timeline_steps,
            **settings,
        )
        return [
            *launch(ranks, self.bind),
            str(self.binary),
            "train",
            str(self.base),
            "--plan",
            str(plan),
            *quiet,
        ], run_dir / "metrics.jsonl"


def ranks_of(plan):
    return len({rank for stage in plan["stages"] for rank in stage["ranks"]})


class Turns:
    """A training run that works only while it has its turn: in between all its processes are stopped
    (SIGSTOP), so that start-up is paid once and both sides of a comparison are measured within seconds of
    each other. `lines`: its step records, one JSON object a line with `ms` and `loss`."""

    def __init__(self, command, lines, log):
        self.lines = Path(lines)
        self.lines.unlink(missing_ok=True)
        self.read, self.found = 0, []
        self.command, self.log = command, Path(log)
        with open(log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=ENVIRONMENT, stdout=out, stderr=out, start_new_session=True
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Without the launcher's, which then clears up after its ranks; it knows by itself.
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL, leader=len(self.members()) == 1)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def members(self):
        """Processes of the session that the command leads."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(fields[3]) == self.process.pid:
                found.append(int(entry))
        return found

    def signal(self, number, leader=True):
        for pid in self.members():
            if leader or pid != self.process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def records(self):
        """All so far. Only what is new is read: this runs beside what is measured."""
        if self.lines.exists():
            with open(self.lines, "rb") as lines:
                lines.seek(self.read)
                new = lines.read()
            whole = new[: new.rfind(b"\n") + 1]
            self.read += len(whole)
            self.found += [json.loads(line) for line in whole.splitlines()]
        return self.found

    def take(self, steps, drop=1):
        """Goes on for `drop` + `steps` steps; returns the milliseconds of the last `steps`. The first one
        dropped is the one that was interrupted."""
        until = len(self.records()) + drop + steps
        last_change, count = time.monotonic(), 0
        self.signal(signal.SIGCONT)
        while len(records := self.records()) < until:
            if self.process.poll() is not None:
                sys.exit(
                    f"{text(self.command)}\nended with {self.process.returncode}:\n{self.log.read_text()}"
                )
            if len(records) > count:
                count, last_change = len(records), time.monotonic()
            if time.monotonic() - last_change > TURN_TIMEOUT:
                sys.exit(f"{text(self.command)}\nmade no step for {TURN_TIMEOUT} s:\n{self.log.read_text()}")
            time.sleep(0.01)
        self.signal(signal.SIGSTOP)
        return [record["ms"] for record in records[until - steps : until]]


def taking_turns(sides, pairs, steps, warm=2):
    """`sides`: two Turns. Each pair is A B or B A, in turns. Returns for every side its median milliseconds
    per step, pair by pair."""
    for side in sides:
        side.take(1, drop=warm)
    figures = [[] for _ in sides]
    for pair in range(pairs):
        for i in (0, 1) if pair % 2 == 0 else (1, 0):
            figures[i].append(statistics.median(sides[i].take(steps)))
    return figures


def spread(values):
    """Interquartile range over the median."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return (high - low) / statistics.median(values)


class Table:
    """Aligned columns, a row printed as soon as it is known. `<` in front of a header: to the left. `widths`:
    of the first columns, where cells outgrow their header."""

    def __init__(self, *headers, widths=None):
        self.left = [header.startswith("<") for header in headers]
        names = [header.lstrip("<") for header in headers]
        self.widths = [
            max(len(name), wanted) for name, wanted in zip(names, [*(widths or []), *[0] * len(names)])
        ]
        self.row(*names)
        print("-" * (sum(self.widths) + 2 * (len(names) - 1)), flush=True)

    def row(self, *cells):
        print(
            "  ".join(
                f"{cell:<{w}}" if left else f"{cell:>{w}}"
                for cell, w, left in zip(map(str, cells), self.widths, self.left)
            ).rstrip(),
            flush=True,
        )
