"""The job scripts of examples/slurm on a slurmctld and slurmd of this test's own: stopped by the signal
before the time limit and preempted, a job starts again and ends as a run that was left alone."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time

import pytest

from places import SOURCE, STAGECRAFT

if not all(shutil.which(name) for name in ("slurmctld", "slurmd", "sbatch")):
    pytest.skip("there is no Slurm (Debian: slurm-wlm)", allow_module_level=True)
if os.geteuid() != 0:
    pytest.skip("slurmd wants root", allow_module_level=True)

# Two partitions on one node: jobs in `high` take it from those in `low`. auth/none spares munged.
SLURM_CONF = """
ClusterName=stagecraft
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
MpiDefault=pmix
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=10
"""

# Steps of 0.1 s, whatever the machine does beside them.
DELAY = {
    "type": "delay",
    "forward_ms": 10,
    "backward_input_ms": 10,
    "backward_weight_ms": 5,
    "features": 8,
    "parameters": 1,
}
RUN = {
    "model": {
        "family": "sequential",
        "layers": [{"type": "linear", "features": 8}, DELAY, DELAY, {"type": "linear", "features": 4}],
    },
    "data": {"type": "synthetic", "samples": 64, "validation_samples": 0, "shape": [8], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 4,
    "train_steps": 50,
    "threads_per_rank": 1,
    "pipeline": {"cuts": [2]},
    "profiler": {"repeats": 2, "warmup_ms": 0},
}
PATIENCE = 60


def until(true, what):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, what()
        time.sleep(0.1)


def free_ports(count):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        for name in ("state", "spool", "bin"):
            (folder / name).mkdir()
        (folder / "bin" / "stagecraft").symlink_to(STAGECRAFT)
        conf = folder / "slurm.conf"
        conf.write_text(
            SLURM_CONF.format(host=socket.gethostname().split(".")[0], folder=folder, ports=free_ports(2))
        )
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(conf),
            # Slurm's PMIx takes no folder that a killed step of the same number has left in /tmp.
            "TMPDIR": str(folder),
            "SLURM_PMIX_TMPDIR": str(folder),
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        self.daemons = [
            subprocess.Popen([*words, "-D", "-f", conf], env=self.environment, stderr=subprocess.DEVNULL)
            for words in (["slurmctld", "-c"], ["slurmd"])
        ]
        until(lambda: "idle" in self.says("sinfo", "-h", "-p", "low", "-o", "%T"), self.logs)

    def says(self, *words):
        return subprocess.run(
            words, env=self.environment, capture_output=True, text=True, check=False
        ).stdout.strip()

    def logs(self):
        return "\n".join(log.read_text()[-4000:] for log in self.folder.glob("*.log"))

    def submit(self, *words):
        return self.says("sbatch", "--parsable", "-o", f"{self.folder}/job-%j.txt", *words)

    def job(self, number):
        """JobState, Restarts and others."""
        text = self.says("scontrol", "show", "job", number)
        return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)

    def await_start(self, number, restarts):
        """Slurm lets a job that was requeued wait for two minutes, because slurmd refuses a start in the
        second in which it killed the one before ("already killed"). Three seconds do."""

        def is_in(*states):
            job = self.job(number)
            return job.get("Restarts") == str(restarts) and job["JobState"] in states

        until(lambda: is_in("PENDING"), lambda: self.story(number))
        self.says("scontrol", "update", f"JobId={number}", "StartTime=now+3")
        until(lambda: is_in("RUNNING"), lambda: self.story(number))

    def story(self, number):
        return f"{self.job(number)}\n{self.output(number)}\n{self.logs()}"

    def output(self, number):
        return (self.folder / f"job-{number}.txt").read_text()

    def end(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait(PATIENCE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("slurm"))
    yield made
    made.end()


def facts(run_dir):
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(line["step"], line["loss"]) for line in map(json.loads, lines)]


def test_a_job_that_is_stopped_and_preempted_ends_as_one_left_alone(cluster, tmp_path):
    config = {**RUN, "run_dir": str(tmp_path / "run")}
    (tmp_path / "run.json").write_text(json.dumps(config))
    whole = {**RUN, "run_dir": str(tmp_path / "whole")}
    (tmp_path / "whole.json").write_text(json.dumps(whole))
    job = cluster.submit("--time=10", SOURCE / "examples/slurm/srun.sbatch", tmp_path / "run.json")

    def made(steps):
        until(lambda: len(facts(tmp_path / "run")) >= steps, lambda: cluster.output(job))

    made(5)
    # What --signal=B:USR1@300 does 300 s before the limit, of which the shortest is a minute.
    cluster.says("scancel", "--signal=USR1", "--batch", job)
    cluster.await_start(job, 1)
    first = len(facts(tmp_path / "run"))
    assert first < 50, "the job was stopped in the middle"
    made(first + 5)
    cluster.submit("-p", "high", "-n", "2", "--wrap", "sleep 1")
    cluster.await_start(job, 2)
    alone = subprocess.run([STAGECRAFT, "train", tmp_path / "whole.json"], check=False, capture_output=True)
    assert alone.returncode == 0
    until(lambda: cluster.job(job)["JobState"] == "COMPLETED", lambda: cluster.output(job))
    said = cluster.output(job)
    assert "stopped by USR1 after step" in said and "stopped by TERM after step" in said
    for start in ("exit code 75: start 0", "exit code 75: start 1"):
        assert said.count(start) == 1
    assert facts(tmp_path / "run") == facts(tmp_path / "whole")


def test_a_job_that_cannot_succeed_is_not_started_again(cluster, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({**RUN, "train_stepz": 1}))
    job = cluster.submit("--time=10", SOURCE / "examples/slurm/srun.sbatch", tmp_path / "run.json")
    until(lambda: cluster.job(job)["JobState"] == "FAILED", lambda: cluster.output(job))
    assert cluster.job(job)["Restarts"] == "0"
    assert cluster.job(job)["ExitCode"] == "2:0"
    assert 'did you mean "train_steps"' in cluster.output(job)
