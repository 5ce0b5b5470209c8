"""stagecraft-generate: continues a prompt with a causal language model that a run trained, through its export
and transformers: plainly slow, and what Hugging Face's own code computes."""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stagecraft_tools.arguments import Parser, at_least_zero, whole
from stagecraft_tools.console import add_traceback, run
from stagecraft_tools.json_files import read_json
from stagecraft_tools.refusal import Refused

from .exporting import export
from .words import Words, words_of

TOOL = "stagecraft-generate"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(TOOL, __doc__.partition(": ")[2])
    parser.add_argument("run", metavar="RUN", help="a run's directory, one of its checkpoints, or an export")
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="what it goes on with; - reads it")
    parser.add_argument(
        "--max-new-tokens",
        type=whole(1, 1_000_000),
        default=100,
        metavar="N",
        help="most that are written, within the model's longest text (default: 100)",
    )
    parser.add_argument(
        "--temperature",
        type=at_least_zero(),
        default=0.8,
        metavar="T",
        help="how freely tokens are drawn; 0: always the likeliest (default: 0.8)",
    )
    parser.add_argument(
        "--seed", type=whole(0, 2**63 - 1), default=0, metavar="N", help="of the draws (default: 0)"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        help="of Hugging Face (default: the export's; bytes, where the run's data are a text's bytes)",
    )
    parser.add_argument(
        "--model", metavar="FOLDER", help="the captured model's folder (default: as the run's config says)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    add_traceback(parser)
    return parser.parse_args(arguments)


@contextlib.contextmanager
def as_exported(run: Path, model: str | None) -> Iterator[Path]:
    """A folder that transformers loads: `run` itself, or its export, which goes again."""
    if (run / "config.json").is_file() and "model_type" in object_in(run / "config.json"):
        yield run
        return
    if (run / "stagecraft_export.json").is_file():
        raise Refused(
            f"{run}: is an export without a Hugging Face config: what generates text is a causal"
            " language model of transformers, captured with --hf"
        )
    with tempfile.TemporaryDirectory(prefix="stagecraft-generate-") as folder:
        made = Path(folder) / "export"
        export(run, made, model)
        yield made


def object_in(path: Path) -> dict[str, object]:
    value = read_json(path)
    return value if isinstance(value, dict) else {}


def require_causal(folder: Path, run: Path) -> None:
    config = object_in(folder / "config.json") if (folder / "config.json").is_file() else {}
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not any(
        "CausalLM" in str(a) or "LMHead" in str(a) for a in architectures
    ):
        its = ", ".join(map(str, architectures)) if isinstance(architectures, list) else ""
        raise Refused(
            f"{run}: is of {its or 'a model that is none of Hugging Face'}; generate takes causal language"
            " models that were captured with --hf"
        )


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    run_path = Path(options.run)
    if not run_path.is_dir():
        raise Refused(f"{run_path}: {'is no folder' if run_path.exists() else 'no such folder'}")
    given = sys.stdin.buffer.read() if options.prompt == "-" else os.fsencode(options.prompt)
    try:
        prompt = given.decode()
    except UnicodeDecodeError as error:
        raise Refused(f"--prompt: is no text in UTF-8: byte {error.start}") from error
    with as_exported(run_path, options.model) as folder:
        require_causal(folder, run_path)
        words = words_of(folder, run_path, options.tokenizer)
        text, tokens = continued(folder, words, prompt, options)
    if options.json:
        print(json.dumps({"prompt": prompt, "text": text, "new_tokens": tokens}))
    else:
        print(prompt + text)
    return 0


def continued(folder: Path, words: Words, prompt: str, options: argparse.Namespace) -> tuple[str, int]:
    """What the model writes, and how many tokens that are."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    ids = words.ids(prompt)
    if not ids:
        raise Refused("--prompt: has no token: give some text")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    vocabulary = int(model.config.vocab_size)
    if max(ids) >= vocabulary:
        raise Refused(
            f"--prompt: has token {max(ids)}, and the model knows {vocabulary}: is it another tokenizer?"
        )
    stated = (getattr(model.config, key, None) for key in ("max_position_embeddings", "n_positions"))
    room = next((int(value) for value in stated if value), 1 << 30)
    if len(ids) >= room:
        raise Refused(f"--prompt: has {len(ids)} tokens, and the model takes {room - 1} before a new one")
    most = min(options.max_new_tokens, room - len(ids))
    torch.manual_seed(options.seed)
    drawn = (
        {"do_sample": True, "temperature": options.temperature}
        if options.temperature > 0
        else {"do_sample": False}
    )
    given = torch.tensor([ids])
    with torch.no_grad():
        made = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=most,
            eos_token_id=words.end,
            pad_token_id=words.end if words.end is not None else 0,
            **drawn,
        )
    new = made[0, len(ids) :].tolist()
    return words.text(ids, new), len(new)


def program() -> int:
    return run(TOOL, main, "transformers")
