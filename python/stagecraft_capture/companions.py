"""What stands beside a Hugging Face model's weights: configs and tokenizers. An export takes them along."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


NAMES = {
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
}


def write(model: torch.nn.Module, source: str, folder: str) -> None:
    """The model's config as it was captured, and the tokenizer's files that lie in `source`."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        try:
            generation.save_pretrained(folder)
        except ValueError:  # transformers refuses to write what it has read
            if os.path.isfile(f"{source}/generation_config.json"):
                shutil.copyfile(f"{source}/generation_config.json", f"{folder}/generation_config.json")
    for name in sorted(NAMES):
        if os.path.isfile(f"{source}/{name}"):
            shutil.copyfile(f"{source}/{name}", f"{folder}/{name}")
