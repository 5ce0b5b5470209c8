"""A run over hosts of two ranks each, which are network namespaces that a bridge joins
(scripts/bench/netns.sh, root): a cable is pulled for some seconds, the network falls apart, a host is
killed whole, or is slow. The run goes on where the disturbance is shorter than what `comms` allows. Else
all ranks on all hosts end by themselves, within the bound, and the run is started again, without the
killed host where its plan may change. In the end it has the bits of one that was left alone."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .trial import SCHEDULES, BesideTheWhole, Setting, Start, Wrong, compare, prepared

HOSTS, RANKS_OF_HOST = 4, 2
RANKS = HOSTS * RANKS_OF_HOST
BOUND = 25  # seconds: comms.timeout_s
# TCP tries again after twice the time each time, so what was cut for 10 s may come back after 13.
CABLE = (1, 10, 60)
SLACK = 45  # seconds beyond BOUND: ranks that hear of a failure give way, on a machine that is busy
NOT_ALLOWED = 77
NETNS = Path(__file__).resolve().parents[1] / "bench/netns.sh"
ASYNCHRONOUS = ("pipedream", "2bw")
# What ends a run says which rank is missing, or which one failed.
CAUSE = re.compile(r"rank \d+ (has not been heard of|is alive and|failed)|process of rank \d+ has ended")


class OverHosts(Setting):
    """Stages are planned for the ranks that there are, so a run may go on with fewer hosts."""

    def config(self, run_dir: Path) -> dict[str, Any]:
        return {**super().config(run_dir), "comms": {"timeout_s": BOUND}}


class Hosts(Start):
    """One start of a run over so many hosts, and what can be done to them."""

    def __init__(self, command: str, setting: Setting, config: Path, hosts: int) -> None:
        self.hosts = range(2, 2 + hosts)
        self.number = hosts * RANKS_OF_HOST
        ranks = {"min": self.number, "max": self.number}
        words = [str(NETNS), str(self.number), "0", "-s", str(RANKS_OF_HOST)]
        words += [command, "train", str(config), "--resume"]
        if setting.schedule not in ASYNCHRONOUS:
            words += ["--set", f"pipeline.ranks={json.dumps(ranks)}"]
        environment = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
        self.setting = setting
        self.output = config.with_suffix(".txt")
        self.begun = time.monotonic()
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                words, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        self.name = f"sc{self.process.pid}"

    def ip(self, *words: str) -> str:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Wrong(f"ip {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def of(self, host: int) -> list[int]:
        """All processes of a host."""
        done = subprocess.run(
            ["ip", "netns", "pids", f"{self.name}-{host}"], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in done.stdout.split()]

    def ranks(self, *hosts: int) -> list[int]:
        return [pid for host in hosts or self.hosts for pid in self.of(host) if is_rank(pid)]

    def cable(self, host: int, state: str) -> None:
        self.ip("-n", f"{self.name}-hub", "link", "set", f"port{host}", state)

    def part(self, *hosts: int) -> None:
        """These see each other, and nobody else sees them."""
        hub = f"{self.name}-hub"
        self.ip("-n", hub, "link", "add", "other", "type", "bridge")
        self.ip("-n", hub, "link", "set", "other", "mtu", "9000", "up")
        for host in hosts:
            self.ip("-n", hub, "link", "set", f"port{host}", "master", "other")

    def end(self) -> None:
        """Takes the hosts away."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def computed(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def is_rank(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "stagecraft"
    except OSError:
        return False


def send(processes: list[int], what: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, what)


def pull(seconds: float) -> Callable[[Hosts, random.Random], None]:
    def event(hosts: Hosts, choose: random.Random) -> None:
        host = choose.choice(hosts.hosts)
        hosts.cable(host, "down")
        wait_for_end(hosts, seconds)
        with contextlib.suppress(Wrong):  # mpirun may have ended, and the hosts gone with it
            hosts.cable(host, "up")

    return event


def flicker(hosts: Hosts, choose: random.Random) -> None:
    host = choose.choice(hosts.hosts)
    for _ in range(12):
        hosts.cable(host, "down")
        time.sleep(choose.uniform(0.01, 0.1))
        hosts.cable(host, "up")
        time.sleep(choose.uniform(0.05, 0.3))


def slow(hosts: Hosts, choose: random.Random) -> None:
    """A host that gets a fifth of its time."""
    ranks = hosts.ranks(choose.choice(hosts.hosts))
    until = time.monotonic() + 4
    while time.monotonic() < until:
        send(ranks, signal.SIGSTOP)
        time.sleep(0.08)
        send(ranks, signal.SIGCONT)
        time.sleep(0.02)


def partition(hosts: Hosts, choose: random.Random) -> None:
    hosts.part(*choose.sample(list(hosts.hosts), choose.randint(1, len(hosts.hosts) - 1)))


def kill_host(hosts: Hosts, choose: random.Random) -> None:
    send(hosts.of(choose.choice(hosts.hosts)), signal.SIGKILL)


def wait_for_end(hosts: Hosts, seconds: float) -> bool:
    """Whether no rank is left, within so long."""
    until = time.monotonic() + seconds
    while hosts.ranks():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


# What is done, whether the run goes on through it, and how many hosts are there afterwards.
EVENTS = {
    "cable 1 s": (pull(CABLE[0]), True, HOSTS),
    "host killed": (kill_host, False, HOSTS - 1),
    "slow host": (slow, True, HOSTS),
    "partition": (partition, False, HOSTS),
    "flicker": (flicker, True, HOSTS),
    "cable 10 s": (pull(CABLE[1]), True, HOSTS),
    "cable 60 s": (pull(CABLE[2]), False, HOSTS),
}


class Campaign(BesideTheWhole):
    def trial(self, seed: int) -> tuple[str, Counter[str]]:
        choose = random.Random(seed)
        name = list(EVENTS)[seed % len(EVENTS)]
        event, goes_on, left = EVENTS[name]
        setting = OverHosts(choose.choice(SCHEDULES), RANKS, "threads", in_background=choose.random() < 0.5)
        facts, _ = self.whole.of(setting)
        run_dir, config = prepared(self.folder / "hurt", setting)
        seen = Counter(runs=1, starts=1)
        hosts = Hosts(self.command, setting, config, HOSTS)
        try:
            lines = await_steps(hosts, run_dir, choose.randint(2, 20))
            if lines:
                event(hosts, choose)
                seen["events"] += 1
            took = ended(hosts, setting, name, goes_on)
        finally:
            hosts.end()
        if hosts.process.returncode == 0:
            seen["went on"] += 1
        else:
            seen["ended"] += 1
            seen["longest end, s"] = round(took)
            check_record(run_dir, setting, hosts)
            if setting.schedule in ASYNCHRONOUS:  # an asynchronous run keeps its pipeline
                left = HOSTS
            hosts = Hosts(self.command, setting, config, left)
            seen["starts"] += 1
            try:
                if hosts.wait() != 0:
                    code = hosts.process.returncode
                    raise Wrong(f"{setting}, {name}: started again it ends with {code}\n{hosts.said()}")
            finally:
                hosts.end()
        compare(run_dir, facts, setting)
        return name, seen


def await_steps(hosts: Hosts, run_dir: Path, steps: int) -> int:
    """Lines of metrics.jsonl once there are so many; 0 where the run has ended before."""
    begun = time.monotonic()
    lines = 0
    while hosts.process.poll() is None:
        with contextlib.suppress(OSError):
            lines = (run_dir / "metrics.jsonl").read_text().count("\n")
            if lines >= steps:
                return lines
        if time.monotonic() - begun > 200:
            ranks = hosts.ranks()  # too little processor time: starved; else they wait for something
            state = f"{len(ranks)} ranks with {sum(map(computed, ranks)):.0f} s of processor time"
            hosts.end()
            raise Wrong(f"{hosts.setting}: {lines} of {steps} steps after 200 s, {state}\n{hosts.said()}")
        time.sleep(0.05)
    if hosts.process.returncode == NOT_ALLOWED:
        print(hosts.said().strip())
        raise SystemExit(NOT_ALLOWED)
    return 0


def ended(hosts: Hosts, setting: Setting, name: str, goes_on: bool) -> float:
    """Waits for the run's end, in its time: returns the seconds that ranks took."""
    begun = time.monotonic()
    if goes_on:
        if hosts.wait() != 0:
            raise Wrong(f"{setting}, {name}: it ends with {hosts.process.returncode}\n{hosts.said()}")
        return 0
    if not wait_for_end(hosts, BOUND + SLACK):
        raise Wrong(f"{setting}, {name}: ranks are left after {BOUND + SLACK} s\n{hosts.said()}")
    return time.monotonic() - begun


def check_record(run_dir: Path, setting: Setting, hosts: Hosts) -> None:
    """Where a rank could say why it ends, it says who is missing."""
    record = run_dir / "exit.json"
    if not record.exists():
        return
    said = json.loads(record.read_text())
    if said["code"] not in (4, 75) or (said["code"] == 4 and not CAUSE.search(said["message"])):
        raise Wrong(f"{setting}: exit.json says {said}\n{hosts.said()}")
