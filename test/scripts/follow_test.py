"""stagecraft-follow: runs that go, are killed, resumed or over, in each of the tools, read by those
themselves."""

import collections
import dataclasses
import fcntl
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from places import BUILD, ENVIRONMENT, MEASURED_ONCE, SOURCE, STAGECRAFT

os.environ["STAGECRAFT_PLANNER"] = str(BUILD / "planner/stagecraft")

from stagecraft_follow import command, follower, step_log
from stagecraft_follow.figures import point_of_line
from stagecraft_follow.metrics_file import MetricsFile
from stagecraft_follow.place import Place
from stagecraft_follow.run_directory import RunDirectory, numbers_here
from stagecraft_follow.target import Target

CONFIG = {
    "model": {"family": "mlp", "hidden": [12, 8]},
    "data": {"type": "synthetic", "samples": 64, "validation_samples": 16, "shape": [8], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 4,
    "train_steps": 30,
    "gradient_clipping": 1.0,
    "validation": {"every_steps": 10},
    "pipeline": {"schedule": "1f1b", "stages": 2},
    **MEASURED_ONCE,
}
LINES = 30 + 3
# Layers that take 20 ms make steps that a test can get in between.
SLOW = {
    "model": {
        "family": "sequential",
        "layers": [
            {"type": "flatten"},
            {"type": "delay", "forward_ms": 20},
            {"type": "linear", "features": 4},
        ],
    },
    "checkpoint": {"every_steps": 10},
}


def train(folder, *arguments, **changes):
    path = folder / "run.json"
    path.write_text(json.dumps({**CONFIG, "run_dir": str(folder / "run"), **changes}))
    return [STAGECRAFT, "train", str(path), *arguments]


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that is over."""
    folder = tmp_path_factory.mktemp("finished")
    subprocess.run(train(folder), check=True, capture_output=True, env=ENVIRONMENT)
    assert len(lines_of(folder / "run")) == LINES
    return folder / "run"


@pytest.fixture
def half(finished, scratch):
    """The same as it was when it had made half of its steps, killed while it wrote a line."""
    run = scratch / "run"
    shutil.copytree(finished, run)
    for name in ("summary.json", "timeline.json"):
        (run / name).unlink()
    text = (finished / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(text[:16]) + text[16][:30])
    return run


def complete(run, finished):
    for name in ("metrics.jsonl", "summary.json", "timeline.json"):
        shutil.copy(finished / name, run / name)


def follow(run, to, *arguments):
    """To the end of a run that is over."""
    return command.main([str(run), "--to", to, "--patience", "0", "--every", "0.01", *map(str, arguments)])


def follow_alone(run, to, *arguments):
    """The same in a process of its own, as people have it: a tool's service may outlive its client."""
    words = (str(run), "--to", to, "--patience", "0", "--every", "0.01", *map(str, arguments))
    code = f"import sys; from stagecraft_follow import command; sys.exit(command.main({list(words)!r}))"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )


def follow_in_parts(half, finished, to, *arguments, follow=follow):
    """A run that was killed; that is there again as a whole; and once more."""
    follow(half, to, *arguments)
    complete(half, finished)
    follow(half, to, *arguments)
    follow(half, to, *arguments)


def expect_all(found, finished):
    """`found`: (name, step, number) of all that a target has: each figure of each line once, and the
    report."""
    assert max(collections.Counter((name, step) for name, step, _ in found).values()) == 1
    wanted = [point_of_line(line, 0, 1.0) for line in lines_of(finished)]
    wanted = {(f.flat, p.step): f.number for p in wanted for f in p.figures}
    have = {(name, step): number for name, step, number in found}
    for (name, step), number in wanted.items():
        if name != "time/step_predicted_ms":
            assert have[name, step] == pytest.approx(number, rel=1e-6), (name, step)
    predicted = json.loads((finished / "plan.json").read_text())["predicted"]["step_ms"]
    assert have["time/step_predicted_ms", 7] == pytest.approx(predicted, rel=1e-6)
    report = {name for name, step in have if step == 30}
    assert report >= {
        "stage_0_rank_0/forward_ms",
        "stage_0_rank_0/forward_predicted_ms",
        "stage_0_rank_0/wait_gradient_ms",
        "stage_1_rank_1/wait_activation_ms",
        "stage_1_rank_1/collective_ms",
        "rank_1/memory_measured_bytes",
        "rank_1/memory_proved_bytes",
        "bubble/measured",
        "time/step_median_ms",
    }
    assert have["rank_1/memory_measured_bytes", 30] <= have["rank_1/memory_proved_bytes", 30]


# Reading


def line(step, ms=1000.0, **more):
    return json.dumps({"step": step, "loss": 1.5, "ms": ms, **more}) + "\n"


def test_a_half_written_line_waits(scratch):
    metrics = MetricsFile("m")
    assert not list(metrics.lines())
    Path("m").write_text(line(1) + line(2)[:20])
    assert [found["step"] for found, _ in metrics.lines()] == [1]
    assert not list(metrics.lines())
    Path("m").write_text(line(1) + line(2))
    assert [found["step"] for found, _ in metrics.lines()] == [2]
    assert metrics.rewinds == 0


def test_lines_that_are_cut_are_read_again(scratch):
    """Also where the file is as long again by the time that somebody looks."""
    metrics = MetricsFile("m")

    def read(steps, ms=1000.0):
        Path("m").write_text("".join(line(step, ms=ms if step > 2 else 1000.0) for step in steps))
        return [found["step"] for found, _ in metrics.lines()]

    assert read(range(1, 6)) == [1, 2, 3, 4, 5]
    assert read(range(1, 3)) == [1, 2] and metrics.rewinds == 1
    assert read(range(1, 6)) == [3, 4, 5] and metrics.rewinds == 1
    assert read(range(1, 8), ms=2000.0) == [1, 2, 3, 4, 5, 6, 7] and metrics.rewinds == 2
    Path("m").rename("m.earlier-1")
    assert read(range(1, 10), ms=2000.0) == list(range(1, 10)) and metrics.rewinds == 3


def test_broken_lines_are_left_out(scratch):
    Path("m").write_bytes(line(1).encode() + b"\0" * 300 + b"\n{}\n[1]\n" + line(4).encode())
    metrics = MetricsFile("m")
    assert [found["step"] for found, _ in metrics.lines()] == [1, 4]
    assert metrics.broken == 3


def test_times_are_the_lines_own_and_else_the_files(scratch):
    Path("m").write_text(line(1, unix_time=4990.5) + line(2))
    os.utime("m", (5000, 5000))
    assert [at for _, at in MetricsFile("m").lines()] == [4990.5, 5000]


def test_losses_that_are_none():
    none = {"step": 1, "loss": None, "ms": 1.0}
    assert math.isnan(point_of_line(none, 0, None).figures[0].number)
    found = point_of_line({**none, "validation": True, "no_targets": True}, 0, None)
    assert [figure.flat for figure in found.figures] == ["validation/ms"]


def test_terms_of_a_loss():
    given = {"step": 1, "loss": 1.5, "ms": 1.0, "terms": {"a/b": 0.5, "ce": None}}
    found = {figure.flat: figure.number for figure in point_of_line(given, 0, None).figures}
    assert found["train/loss/a/b"] == 0.5
    assert math.isnan(found["train/loss/ce"])
    found = {
        figure.flat: figure.number for figure in point_of_line({**given, "validation": True}, 0, None).figures
    }
    assert found["validation/loss/a/b"] == 0.5
    none = {**given, "loss": None, "validation": True, "no_targets": True}
    assert [figure.flat for figure in point_of_line(none, 0, None).figures] == ["validation/ms"]


# Following


class Recorder(Target):
    """Keeps what it is sent."""

    def __init__(self, about):
        self.id, self.about, self.points, self.reports, self.end = "kept", about, [], 0, "open"
        self.failures = []

    def send(self, points):
        if self.failures:
            raise self.failures.pop()
        self.points += points

    def send_report(self, report):
        assert "Stages: ms per step" in report.text and Path(report.html).exists()
        self.reports += 1

    def close(self, end):
        self.end = str(end)

    def steps(self, name="train/loss"):
        return [point.step for point in self.points for figure in point.figures if figure.flat == name]


def followed(run, made, *arguments, every="0.02", patience="0"):
    """A follower with a recorder, which is put into `made`."""

    def make(about):
        made.append(Recorder(about))
        return made[-1]

    given = command.parse([str(run), "--to", "otlp", "--every", every, "--patience", patience, *arguments])
    options = command.options_of(given)
    return follower.Follower(dataclasses.replace(options, make=make))


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_is_followed_from_before_its_beginning_over_a_kill_to_its_end(scratch):
    """Steps behind the checkpoint are made twice and sent once."""
    made, run = [], scratch / "run"
    first = followed(run, made, patience="30")
    thread = threading.Thread(target=first.follow)
    thread.start()
    quiet = {"env": ENVIRONMENT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    killed = subprocess.Popen(train(scratch, **SLOW), **quiet)
    until(lambda: made and 14 in made[0].steps())
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert RunDirectory(run).is_held() is False
    subprocess.run([*train(scratch, **SLOW), "--resume"], check=True, **quiet)
    thread.join(60)
    recorder = made[0]
    assert len(made) == 1 and recorder.end == "finished" and recorder.reports == 1
    assert recorder.steps() == list(range(1, 31)) and recorder.steps("validation/loss") == [10, 20, 30]
    assert recorder.about.config["train_steps"] == 30 and "stages" in recorder.about.plan
    losses = {p.step: f.number for p in recorder.points for f in p.figures if f.flat == "train/loss"}
    assert losses == {found["step"]: found["loss"] for found in lines_of(run) if not found["validation"]}
    # The same folder is the run's to go on with.
    done = subprocess.run([*train(scratch, **SLOW), "--resume"], env=ENVIRONMENT, check=False)
    assert done.returncode == 0


def test_a_follower_that_is_left_goes_on_where_it_was(half, finished):
    made = []
    with followed(half, made) as first:
        first.place = place = Place(str(half / "follow"), "otlp", first.options.where)
        first.send_new(MetricsFile(str(half / "metrics.jsonl")), place, first.begin(place))
    assert made[0].steps() == list(range(1, 16)) and made[0].end == "None"
    complete(half, finished)
    with followed(half, made) as second:
        second.follow()
    assert made[1].about.id == "kept" and made[1].steps() == list(range(16, 31))


def test_a_follower_that_is_killed_while_it_sends_sends_nothing_twice(half, finished):
    class Killed(BaseException):
        pass

    def killed(points):
        (state,) = (half / "follow").glob("*.json")
        assert json.loads(state.read_text())["step"] == points[-1].step
        raise Killed

    made = []
    complete(half, finished)
    with followed(half, made) as first:
        first.place = place = Place(str(half / "follow"), "otlp", first.options.where)
        target = first.begin(place)
        target.send = killed
        metrics = MetricsFile(str(half / "metrics.jsonl"))
        with pytest.raises(Killed):
            first.send_new(metrics, place, target)
    with followed(half, made) as second:
        second.follow()
    assert made[1].steps() == [] and made[1].reports == 1


def test_another_run_in_the_same_folder_is_sent_as_another(half, finished):
    made = []
    with followed(half, made) as first:
        first.follow()
    assert made[0].end == "killed" and made[0].reports == 1  # of what it had written
    complete(half, finished)
    lock = (half / ".lock").read_text().splitlines()
    (half / ".lock").write_text("\n".join(["Stagecraft run.0123456789abcdef", *lock[1:]]) + "\n")
    with followed(half, made) as second:
        second.follow()
    assert made[1].about.id == "" and made[1].steps() == list(range(1, 31))


def test_a_target_that_does_not_answer_is_asked_again(finished, scratch, monkeypatch, capfd):
    monkeypatch.setattr(follower, "AGAIN", (0.01, 0.01))
    shutil.copytree(finished, "run")
    made = []
    with followed("run", made) as tried:
        tried.place = place = Place("run/follow", "otlp", tried.options.where)
        target = tried.begin(place)
        target.failures = [ConnectionError("down\nfor long")]
        metrics = MetricsFile("run/metrics.jsonl")
        tried.send_new(metrics, place, target)
        assert target.steps() == list(range(1, 31))
        target.failures = [ConnectionError("gone")] * 3
        with open("run/metrics.jsonl", "a") as file:
            file.write(line(31))
        with pytest.raises(follower.NotTaken, match="otlp: ConnectionError: gone"):
            tried.send_new(metrics, place, target)
        assert place.step == 30
    assert capfd.readouterr().err.count("trying again") == 2
    with followed("run", made) as again:
        again.follow()
    assert made[1].steps() == [31]


def test_whether_a_process_of_the_run_lives(half):
    """One that has its number by now is another one: it has no lock."""
    directory = RunDirectory(half)
    mark = (half / ".lock").read_text().splitlines()[0]
    for process, numbers, held in [
        (os.getpid(), numbers_here(), False),
        (2**22 + 1, numbers_here(), False),
        (os.getpid(), "another-kernel/pid:[1]", None),
    ]:
        (half / ".lock").write_text(f"{mark}\n{process} machine {numbers} session.1\n")
        assert directory.is_held() is held
    (half / ".lock").write_text(f"{mark}\n{os.getpid()} machine {numbers_here()} session.1\n")
    with open(half / ".lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert directory.is_held() is True
    assert directory.is_held() is False


def test_two_followers_of_one_place(half):
    place = Place(str(half / "follow"), "otlp", "here")
    with pytest.raises(Exception, match="followed to otlp at here already"):
        Place(str(half / "follow"), "otlp", "here")
    place.close()
    Place(str(half / "follow"), "otlp", "here").close()


def run_command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "stagecraft_follow", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, **environment},
        check=False,
    )


def test_what_is_refused(finished, scratch):
    for name in ("one", "live", "logs"):  # a run may have the name of what runs write
        (scratch / "runs" / name).mkdir(parents=True)
        (scratch / "runs" / name / "plan.json").write_text("{}")
    for arguments, code, text in [
        ([finished / "metrics.jsonl", "--to", "otlp"], 2, "metrics.jsonl: is no folder, and so no run's"),
        (["runs", "--to", "otlp"], 2, f"expected a run directory, such as {scratch}/runs/live"),
        (
            ["/proc", "--to", "otlp"],
            2,
            "/proc: is a folder with nothing of a run in it; expected a run directory",
        ),
        (["none", "--to", "otlp", "--patience", "0"], 2, "none: is no run directory"),
        ([finished, "--to", "visdom"], 2, '"visdom" is not one of tensorboard, wandb'),
        ([finished, "--to", "tensorboard", "--project", "x"], 2, "--project x: tensorboard has no projects"),
        ([finished, "--to", "prometheus", "--project", "x"], 2, "--project x: prometheus has no projects"),
        (
            [finished, "--to", "tensorboard", "--name", "x"],
            2,
            "--name x: tensorboard calls a run by its folder",
        ),
        ([finished, "--to", "wandb", "--at", "x"], 2, "--at x: wandb's own variables say where it goes"),
        ([finished, "--to", "prometheus", "--at", "x", "--state", "s"], 2, "--at x: expected HOST:PORT"),
        (
            [finished, "--to", "otlp", "--every", "-1"],
            2,
            "--every: expected a number of seconds, 0 or more, found '-1'",
        ),
        ([finished, "--to", "otlp", "--state", "/proc/x"], 2, "--state FOLDER keeps it elsewhere"),
    ]:
        done = run_command(*arguments)
        assert done.returncode == code and text in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    (scratch / "hidden").mkdir()
    (scratch / "hidden/tensorboard.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'tensorboard'\", name='tensorboard')\n"
    )
    path = {"PYTHONPATH": f"{scratch}/hidden:{ENVIRONMENT['PYTHONPATH']}"}
    done = run_command(finished, "--to", "tensorboard", "--state", scratch, **path)
    assert done.returncode == 2
    assert done.stderr == (
        "stagecraft-follow: there is no Python module tensorboard here: "
        f"{sys.executable} -m pip install tensorboard\n"
    )


def test_it_is_left_by_a_signal(half):
    """With 128 + its number, and in order."""
    (half / ".lock").write_text("Stagecraft run.0123456789abcdef\n")  # whose, nobody knows: it may go on
    child = subprocess.Popen(
        [sys.executable, "-m", "stagecraft_follow", half, "--to", "tensorboard"],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    state = half / "follow"
    until(lambda: any(json.loads(path.read_text())["step"] == 15 for path in state.glob("*.json")))
    child.terminate()
    said = child.communicate(timeout=30)[1]
    assert child.returncode == 128 + signal.SIGTERM
    # The signal may come before what was written down is sent.
    assert re.search(r"left at step (0|15); the same command goes on from there\n$", said), said
    assert {json.loads(path.read_text())["step"] for path in state.glob("*.json")} <= {-1, 15}


def test_the_command_starts_the_tool(finished, scratch):
    """The one beside it, or on the PATH, with all that it was given; and so does the package."""
    planner = BUILD / "planner/stagecraft"
    (scratch / "stagecraft-follow").write_text('#!/bin/sh\nprintf "%s|" "$STAGECRAFT_PLANNER" "$@"\nexit 7\n')
    (scratch / "stagecraft-follow").chmod(0o755)
    words = ["a b", "--to", "x", "--help", "-v"]

    def ask(program, path, *given):
        environment = {"PATH": f"{path}:/usr/bin:/bin", "STAGECRAFT_PYTHON": sys.executable}
        return subprocess.run(
            [*program, "follow", *given], capture_output=True, text=True, env=environment, check=False
        )

    done = ask([planner], scratch, *words)
    assert (done.returncode, done.stdout) == (7, "|".join([str(planner.resolve()), *words, ""]))
    done = ask([planner], "/none", *words)
    assert done.returncode == 2 and "there is no stagecraft-follow beside this program" in done.stderr
    given = [finished, "--to", "visdom"]
    said = ask([STAGECRAFT], "/none", *given)
    assert said.returncode == 2 and "stagecraft-follow: --to: " in said.stderr
    package = [sys.executable, "-c", f"import runpy, sys; sys.path.insert(0, {str(SOURCE / 'python')!r});"]
    package[-1] += " runpy.run_module('stagecraft', run_name='__main__', alter_sys=True)"
    of_package = ask(package, "/none", *given)
    assert (of_package.returncode, of_package.stderr) == (2, said.stderr)


def test_each_target_is_an_extra_of_the_wheel():
    text = (SOURCE / "python/wheel/torch_here.py").read_text()
    for name in command.TARGETS:
        assert f'"{name}": ["{command.target_class(name).modules}"]' in text


# Targets


def test_tensorboard(half, finished):
    """By TensorBoard's own reader, while the run goes and afterwards."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    follow(half, "tensorboard")
    reader = EventAccumulator(str(half / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    assert [event.step for event in reader.Tensors("train/loss")] == list(range(1, 16))
    follow_in_parts(half, finished, "tensorboard")
    reader = EventAccumulator(str(half / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    from tensorboard.util.tensor_util import make_ndarray

    texts = {}
    found = []
    for tag in reader.Tags()["tensors"]:
        for event in reader.Tensors(tag):
            value = make_ndarray(event.tensor_proto).item()
            if isinstance(value, bytes):
                texts[tag] = value.decode()
            else:
                found.append((tag, event.step, value))
    expect_all(found, finished)
    assert '"train_steps": 30' in texts["config"] and "Stages: ms per step" in texts["report"]
    assert texts["end"] == "finished"
    written = (finished / "metrics.jsonl").stat().st_mtime
    assert abs(reader.Tensors("train/loss")[-1].wall_time - written) < 60


def log_records(data):
    """wandb keeps an offline run as LevelDB keeps its log: blocks of 32 KiB, of parts of records. It has no
    reader in Python any more; the records are of its own protocol."""
    assert data[:4] == b":W&B"
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def test_steps_of_a_pipeline(scratch):
    """In TensorBoard, as `step.log_to` sends them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    rank = SimpleNamespace(rank=1, compute=0.03, wait=0.01, collective=0.0, other=0.0)
    made = {"norm": 0.5, "learning_rate": 0.1, "seconds": 0.04, "samples": 8, "tokens": 0}
    made |= {"skipped": False, "loss_scale": None, "ranks": (rank,), "terms": {}}
    log = step_log.StepLog(
        "tensorboard", "tb", "ours", "mine", {"seed": 3}, {"predicted": {"step_ms": 38.0}}, 100
    )
    log.evaluation(SimpleNamespace(loss=2.5, seconds=0.01, terms={}))
    for step in range(100, 103):
        log.step(SimpleNamespace(step=step, loss=2.0 - step / 100, **made))
    log.close()
    reader = EventAccumulator("tb", size_guidance={"tensors": 0})
    reader.Reload()

    def read(name):
        events = reader.Tensors(name)
        return [(event.step, round(float(make_ndarray(event.tensor_proto)), 4)) for event in events]

    assert read("train/loss") == [(101, 1.0), (102, 0.99), (103, 0.98)]
    assert read("validation/loss") == [(100, 2.5)]
    assert read("time/step_predicted_ms")[0] == (101, 38.0)
    assert read("rank_1/time_compute_ms")[2] == (103, 30.0)
    assert "train/loss_scale" not in reader.Tags()["tensors"]


def test_a_tool_that_fails_ends_no_training():
    with pytest.raises(Exception, match="log_to: 'visdom' is not one of tensorboard, wandb"):
        step_log.StepLog("visdom", "", "", "", {}, {}, 0)
    with pytest.raises(Exception, match="tensorboard needs a folder"):
        step_log.StepLog("tensorboard", "", "", "", {}, {}, 0)
    log = step_log.StepLog("prometheus", "127.0.0.1:0", "", "mine", {}, {}, 0)

    def fail(points):
        raise ConnectionError("down")

    log.target.send = fail
    made = SimpleNamespace(loss=1.0, seconds=1.0, terms={})
    with pytest.warns(UserWarning, match="prometheus: ConnectionError: down; the training goes on"):
        log.evaluation(made)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log.sent = 0.0
        log.evaluation(made)
    log.target.close(None)


def test_wandb(half, finished, monkeypatch):
    """Offline, by the reader of its own files."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(half))
    follow_in_parts(half, finished, "wandb", "--project", "ours", follow=follow_alone)
    from wandb.proto import wandb_internal_pb2

    found, runs, artifacts = [], [], []
    for path in sorted(half.glob("wandb/offline-run-*/*.wandb")):
        for data in log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                runs.append(record.run)
            elif kind == "artifact" or record.request.HasField("log_artifact"):
                artifacts.append(record)
            elif kind == "history":
                items = {
                    item.key or "/".join(item.nested_key): item.value_json for item in record.history.item
                }
                step = record.history.step.num or int(items["_step"])
                found += [
                    (key, step, float(value))
                    for key, value in items.items()
                    if not key.startswith("_") and key != "time/written"
                ]
    assert len({run.run_id for run in runs}) == 1
    assert {(run.project, run.display_name) for run in runs} == {("ours", "run")}
    assert artifacts
    expect_all(found, finished)


def test_trackio(half, finished, monkeypatch):
    """By its own storage, which is SQLite."""
    monkeypatch.setenv("TRACKIO_DIR", str(half / "trackio"))
    follow_in_parts(half, finished, "trackio")
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = SQLiteStorage.get_runs("stagecraft")
    assert name.startswith("run-")
    rows = SQLiteStorage.get_logs("stagecraft", name)
    found = [
        (key, row["step"], value)
        for row in rows
        for key, value in row.items()
        if "/" in key and key != "time/written"
    ]
    expect_all(found, finished)
    assert any("Stages: ms per step" in str(row.get("report")) for row in rows)
    assert SQLiteStorage.get_run_config("stagecraft", name)["train_steps"] == 30


def test_mlflow(half, finished):
    """By its client, from a store of SQLite."""
    store = f"sqlite:///{half}/mlflow.db"
    os.chdir(half)  # where artifacts go
    follow_in_parts(half, finished, "mlflow", "--at", store, "--name", "mine")
    from mlflow import MlflowClient

    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("stagecraft")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "mine" and run.info.status == "FINISHED"
    assert run.data.params["optimizer.params.lr"] == "0.01"
    found = [
        (name, metric.step, metric.value)
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    ]
    expect_all(found, finished)
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        "config.json",
        "plan.json",
        "report.html",
        "report.txt",
    }


def test_prometheus(finished, scratch, monkeypatch):
    """By the parser of its client, from the page that its server would read."""
    from prometheus_client.parser import text_string_to_metric_families

    monkeypatch.setenv("STAGECRAFT_FOLLOW_LINGER", "2")
    shutil.copytree(finished, "run")
    with_terms = [{**found, "terms": {"a/b-c": found["step"], "ce": 0.5}} for found in lines_of(Path("run"))]
    Path("run/metrics.jsonl").write_text("".join(json.dumps(found) + "\n" for found in with_terms))
    for _ in range(2):  # the page begins anew
        with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
            port = server.server_port
        thread = threading.Thread(target=follow, args=("run", "prometheus", "--at", f"127.0.0.1:{port}"))
        thread.start()
        text = ""

        def read(port=port):
            nonlocal text
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                    text = page.read().decode()
            except OSError:
                pass
            return "stagecraft_exit_code" in text

        until(read)
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {key: value for key, value in sample.labels.items() if key != "run"}
                assert sample.labels["run"] == "run"
                found[(sample.name, *sorted(labels.items()))] = sample.value
        last = lines_of(finished)[-2]
        assert found[("stagecraft_train_loss",)] == last["loss"]
        assert found[("stagecraft_train_loss_term", ("term", "a/b-c"))] == 30
        assert found[("stagecraft_validation_loss_term", ("term", "ce"))] == 0.5
        assert found[("stagecraft_step",)] == 30
        assert found[("stagecraft_time_step_seconds",)] == pytest.approx(last["ms"] / 1e3)
        assert found[("stagecraft_exit_code",)] == found[("stagecraft_running",)] == 0
        assert found[("stagecraft_stage_forward_seconds", ("rank", "1"), ("stage", "1"))] > 0
        assert found[("stagecraft_memory_proved_bytes", ("rank", "0"))] > 0
        assert 0 <= found[("stagecraft_bubble_measured_ratio",)] <= 1
        thread.join()


def test_otlp(half, finished):
    """As a collector reads it, from what the exporter posts."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            assert self.path == "/v1/metrics" and self.headers["Content-Type"] == "application/x-protobuf"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            bodies.append(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        follow_in_parts(half, finished, "otlp", "--at", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    series = collections.defaultdict(list)  # of each name and attributes
    times = []
    units = {}
    for body in bodies:
        document = MessageToDict(ExportMetricsServiceRequest.FromString(body))
        for resource in document["resourceMetrics"]:
            attributes = {a["key"]: a["value"]["stringValue"] for a in resource["resource"]["attributes"]}
            assert attributes["service.name"] == "stagecraft" and attributes["stagecraft.run"] == "run"
            for metric in resource["scopeMetrics"][0]["metrics"]:
                units[metric["name"]] = metric["unit"]
                for point in metric["gauge"]["dataPoints"]:
                    labels = tuple(
                        (a["key"], a["value"]["intValue"])
                        for a in sorted(point.get("attributes", []), key=str)
                    )
                    number = point.get("asDouble", point.get("asInt"))
                    series[(metric["name"], *labels)].append(float(number))
                    if metric["name"] == "stagecraft.train.loss":
                        times.append(int(point["timeUnixNano"]) / 1e9)
    losses = [found["loss"] for found in lines_of(finished) if not found["validation"]]
    assert series[("stagecraft.train.loss",)] == losses
    assert times == sorted(times) and abs(times[-1] - time.time()) < 60 and times[0] < times[-1]
    # The report of the killed half has the step it came to, and that of the end the last.
    assert series[("stagecraft.step",)] == [*sorted([15, *(f["step"] for f in lines_of(finished))]), 30]
    assert series[("stagecraft.stage.forward_ms", ("rank", "1"), ("stage", "1"))]
    assert units["stagecraft.time.step_ms"] == "ms" and units["stagecraft.memory.proved_bytes"] == "By"
    assert series[("stagecraft.exit_code",)] == [1, 0]
