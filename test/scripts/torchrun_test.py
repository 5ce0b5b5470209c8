"""What Stagecraft does for torchrun: processes that are started again meet, whatever dead ones left in the
store; and torchrun's summary says what went wrong."""

import json
import subprocess
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from places import STAGECRAFT
from stagecraft.errors import InputError, PeerError
from stagecraft.meeting import agreed_name
from stagecraft.torchrun import leave_error


def names_of(store, world, late=()):
    """What each rank of one start hears; those of `late` come last."""
    names = {}

    def rank(number):
        time.sleep(0.1 * (number in late))
        names[number] = agreed_name(store, number, world, patience=20)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [names[number] for number in range(world)]


def test_all_ranks_of_a_start_share_a_name_that_no_earlier_start_had():
    store, seen = dist.HashStore(), set()
    for late in ((), (0,), (1, 2), (2,)):
        names = names_of(store, 3, late)
        assert len(set(names)) == 1
        assert names[0] not in seen
        seen.add(names[0])


def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(PeerError, match="rank 1 does not come"):
        agreed_name(dist.HashStore(), 0, 3, patience=0.05)
    with pytest.raises(PeerError, match="rank 0 does not come"):
        agreed_name(dist.HashStore(), 2, 3, patience=0.05)


def failure(path):
    """As torchrun reads it."""
    return ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(path))


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_the_exception_that_ends_a_script_is_in_the_summary(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    leave_error(raised(InputError("the batch: too short")))
    read = failure(path)
    assert read.message["message"] == "InputError: the batch: too short"
    assert read.message["errorCode"] == 2
    assert "in raised" in str(ChildFailedError("train.py", {0: read}))
    leave_error(raised(InputError("another")))
    assert failure(path).message == read.message, "what came first stays"


def test_who_only_heard_of_a_failure_is_not_its_root(tmp_path, monkeypatch):
    found = {}
    for rank, error in enumerate((PeerError("rank 1 failed"), ValueError("of the script"))):
        path = tmp_path / str(rank)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
        leave_error(raised(error), now=1000.9)
        found[rank] = failure(path)
    assert ChildFailedError("train.py", found).get_first_failure()[0] == 1


def test_an_error_of_the_command_is_in_the_summary(tmp_path):
    path = tmp_path / "error.json"
    (tmp_path / "run.json").write_text("{}")
    for command in (["train", "run.json"], ["trian"]):
        path.unlink(missing_ok=True)
        done = subprocess.run(
            [STAGECRAFT, *command],
            cwd=tmp_path,
            env={"TORCHELASTIC_ERROR_FILE": str(path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        read = failure(path)
        assert read.message["message"] in done.stderr
        assert read.message["errorCode"] == 2
        first_line = read.message["message"].partition("\n")[0]
        assert first_line in str(ChildFailedError("stagecraft", {0: read}))
        assert abs(read.timestamp - time.time()) < 5
    assert json.loads(path.read_text())["message"]["extraInfo"].keys() == {"timestamp"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["error.json", "run.json"]
