"""A tokenizer of Hugging Face: a tokenizer.json, or a folder with one."""

import os

from stagecraft_tools.json_files import read_json

from .errors import TokenizeError


class Tokenizer:
    def __init__(self, path: str, end: str) -> None:
        """`end`: the token behind each document; none where it is empty."""
        from tokenizers import Tokenizer as Fast

        file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
        if not os.path.isfile(file):
            raise TokenizeError(
                f"--tokenizer {path}: expected a tokenizer.json of Hugging Face, or a folder with one"
            )
        try:
            self.fast = Fast.from_file(file)
        except Exception as error:
            read_json(file)  # which says where it is none
            raise TokenizeError(
                f"--tokenizer {file}: expected a tokenizer.json of Hugging Face, and this file is none:"
                f" {error}"
            ) from None
        self.fast.no_truncation()
        self.fast.no_padding()
        self.vocabulary = self.fast.get_vocab_size(with_added_tokens=True)
        self.end = []
        if end:
            number = self.fast.token_to_id(end)
            if number is None:
                raise TokenizeError(f"--end {end}: the tokenizer has no such token; it has {self.specials()}")
            self.end = [number]

    def specials(self) -> str:
        return (
            ", ".join(sorted(token.content for token in self.fast.get_added_tokens_decoder().values()))
            or "no special ones"
        )

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Of each text, without what a tokenizer puts around sentences. Uses all cores."""
        return [encoded.ids + self.end for encoded in self.fast.encode_batch(texts, add_special_tokens=False)]
