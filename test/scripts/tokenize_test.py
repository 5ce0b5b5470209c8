"""stagecraft-tokenize on real text: its file is what a tokenizer makes of the text, and `stagecraft train`
reads it."""

import glob
import gzip
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy", reason="scripts/setup.sh --models installs it")
pytest.importorskip("tokenizers", reason="scripts/setup.sh --models installs it")

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from places import ENVIRONMENT, MEASURED_ONCE, SOURCE, STAGECRAFT

TEXT = f"{SOURCE}/test/data/text/shakespeare.txt"
TOKENIZE = [sys.executable, "-m", "stagecraft_tokenize"]


def command(*arguments, code=0):
    done = subprocess.run(
        [*TOKENIZE, *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def tokenizer(tmp_path_factory):
    """In the folder of all tests here."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("text"))
    yield learned()
    os.chdir(before)


def learned():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["<end>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.save("tokenizer.json")
    return tokenizer


def test_text_and_training(tokenizer):
    said = command(TEXT, "--tokenizer", ".", "--end", "<end>", "-o", "out/text")
    with open(TEXT, encoding="utf-8") as file:
        expected = [*tokenizer.encode(file.read()).ids, tokenizer.token_to_id("<end>")]
    assert numpy.fromfile("out/text.bin", dtype=numpy.uint16).tolist() == expected
    assert f"1 document, {len(expected):,} tokens of 600" in said
    data = json.loads("{" + said.splitlines()[-1] + "}")["data"]
    config = {
        "model": {"family": "gpt", "blocks": 1, "width": 16, "heads": 2},
        "loss": {"type": "token_cross_entropy"},
        "data": {**data, "sequence": 32},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 4,
        "train_steps": 40,
        **MEASURED_ONCE,
        "threads_per_rank": 1,
        "pipeline": {"schedule": "1f1b", "stages": 2},
        "run_dir": "run",
    }
    with open("run.json", "w") as file:
        json.dump(config, file)
    subprocess.run([STAGECRAFT, "train", "run.json"], check=True, capture_output=True, env=ENVIRONMENT)
    losses = [
        record["loss"]
        for record in map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
        if "loss" in record and "step" in record
    ]
    print("losses", losses[0], losses[-2])
    assert losses[-2] < losses[0] - 0.2


def test_documents(tokenizer):
    texts = ["to be", "or not", "to be?"]
    with gzip.open("d.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"body": text}) + "\n" for text in texts)
    command("d.jsonl.gz", "--key", "body", "--tokenizer", "tokenizer.json", "-o", "d")
    ids = [tokenizer.encode(text).ids for text in texts]
    assert numpy.fromfile("d.bin", dtype=numpy.uint16).tolist() == list(itertools.chain(*ids))
    index = Path("d.idx").read_bytes()
    assert numpy.frombuffer(index, numpy.int32, 3, 34).tolist() == [len(i) for i in ids]
    with open("split.txt", "w") as file:
        file.write("to be\n%\nor not\n%\n")
    with open("marked.txt", "w", encoding="utf-8-sig") as file:
        file.write("to be")
    command("marked.txt", "--tokenizer", ".", "-o", "marked")
    assert numpy.fromfile("marked.bin", dtype=numpy.uint16).tolist() == ids[0], "a mark of UTF-8 is no token"
    assert "2 documents" in command("split.txt", "--split", "%", "--tokenizer", ".", "-o", "split")


REFUSED = [
    (
        ["broken.jsonl", "--tokenizer", "."],
        'broken.jsonl, line 2: not valid JSON: column 13: found the end of the text; expected "," or',
    ),
    (
        ["d.jsonl", "--tokenizer", "broken.json"],
        'broken.json: not valid JSON: line 3, column 1: found "}"; expected a key in double quotes',
    ),
    (["null.jsonl", "--tokenizer", "."], "null.jsonl, line 1: 'text' is null, not a text"),
    (["cut.txt.gz", "--tokenizer", "."], "cut.txt.gz: truncated or corrupt gzip file"),
    (["none.txt", "--tokenizer", "."], "none.txt: No such file"),
    (["d.jsonl", "--tokenizer", "."], "d.jsonl, line 2: has no text under 'text'; it has txt (--key)"),
    (["d.jsonl", "--tokenizer", "nope"], "--tokenizer nope: expected a tokenizer.json"),
    (
        ["d.jsonl", "--tokenizer", "null.jsonl"],
        "--tokenizer null.jsonl: expected a tokenizer.json of Hugging Face, and this file is none: ",
    ),
    (
        [TEXT, "--tokenizer", ".", "--end", "</s>"],
        "--end </s>: the tokenizer has no such token; it has <end>",
    ),
    ([sys.executable, "--tokenizer", "."], "is no UTF-8 at byte"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refused(arguments, message):
    Path("d.jsonl").write_text('{"text": "to be"}\n{"txt": 1}\n')
    Path("broken.jsonl").write_text('{"text": "to"}\n{"text": "a"\n')
    Path("broken.json").write_text('{\n "version": "1.0",\n}\n')
    Path("null.jsonl").write_text('{"text": null}\n')
    Path("cut.txt.gz").write_bytes(gzip.compress(b"to be" * 100)[:-9])
    assert message in command(*arguments, "-o", "e", code=2)
    assert not [name for name in os.listdir() if name.startswith("e.")], "nothing is left half-written"


def test_no_room():
    limited = subprocess.run(
        [*TOKENIZE, TEXT, "--tokenizer", ".", "-o", "e"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        check=False,
    )
    assert limited.returncode == 2 and re.fullmatch(
        r"stagecraft-tokenize: e\.bin\.[0-9a-f]{16}\.part: File too large\n", limited.stderr
    ), limited.stderr
    assert not [name for name in os.listdir() if name.startswith("e.")], "nothing is left half-written"


def test_replaced():
    assert "d.bin: is there already" in command(TEXT, "--tokenizer", ".", "-o", "d", code=2)
    command(TEXT, "--tokenizer", ".", "-o", "d", "--replace")


def test_interrupted():
    os.mkfifo("pipe.txt")
    process = subprocess.Popen(
        [*TOKENIZE, "pipe.txt", "--tokenizer", ".", "-o", "i"], env=ENVIRONMENT, stderr=subprocess.PIPE
    )
    with open("pipe.txt", "w"):
        while not glob.glob("i.bin.*.part"):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130 and b"nothing was written" in said, said
    assert not glob.glob("i.bin*")
