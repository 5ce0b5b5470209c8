"""Text as tokens and back: by the tokenizer beside the model, or as bytes where the run was trained on a
text's bytes."""

from pathlib import Path
from typing import Protocol

from stagecraft_tools.json_files import read_json
from stagecraft_tools.refusal import Refused


class Words(Protocol):
    end: int | None  # a token behind which nothing follows

    def ids(self, text: str) -> list[int]: ...
    def text(self, given: list[int], new: list[int]) -> str:
        """What `new` adds behind `given`."""
        ...


class Bytes:
    """As `"tokens": "bytes"` reads a text."""

    end: int | None = None

    def ids(self, text: str) -> list[int]:
        return list(text.encode())

    def text(self, given: list[int], new: list[int]) -> str:
        return bytes(i for i in new if i < 256).decode(errors="replace")


class Tokenizer:
    """Hugging Face's."""

    def __init__(self, folder: Path) -> None:
        import transformers

        try:
            self.its = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise Refused(f"{folder}: its tokenizer cannot be loaded: {first}") from error
        self.end: int | None = self.its.eos_token_id

    def ids(self, text: str) -> list[int]:
        return list(self.its(text)["input_ids"])

    def text(self, given: list[int], new: list[int]) -> str:
        # A token by itself may lose the blank before it.
        before, whole = (str(self.its.decode(ids, skip_special_tokens=True)) for ids in (given, given + new))
        return whole[len(before) :] if whole.startswith(before) else str(self.its.decode(new))


FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def words_of(folder: Path, run: Path, asked: str | None) -> Words:
    if asked is not None:
        if not Path(asked).is_dir():
            raise Refused(f"--tokenizer: {asked}: no such folder")
        return Tokenizer(Path(asked))
    if any((folder / name).is_file() for name in FILES):
        return Tokenizer(folder)
    if reads_bytes(run):
        return Bytes()
    raise Refused(
        f"{run}: has no tokenizer beside its model: give --tokenizer FOLDER, or capture the model from a"
        " folder that has one"
    )


def reads_bytes(run: Path) -> bool:
    """Whether the run, or that of the checkpoint, was trained on the bytes of a text."""
    for folder in (run, *list(run.resolve().parents)[:2]):
        path = folder / "config.json"
        if path.is_file():
            data = read_json(path).get("data", {})
            return bool(data.get("type") == "text" and data.get("tokens", "bytes") == "bytes")
    return False
