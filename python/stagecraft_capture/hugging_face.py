"""Hugging Face models: from a config or a folder, as a module that returns logits alone."""

import contextlib
import json
import os

import torch

from .errors import CaptureError
from .no_weights import as_on_cpu, parameters_without_numbers


class Logits(torch.nn.Module):
    """A language model from tokens to logits. Its names lose this wrapper's prefix in the model folder."""

    PREFIX = "wrapped."

    def __init__(self, model):
        super().__init__()
        self.wrapped = model

    def forward(self, input_ids):
        return self.wrapped(input_ids=input_ids, use_cache=False).logits


@contextlib.contextmanager
def eager_masks():
    """transformers takes other paths under export than in eager mode: it writes out causal masks, and looks for packed sequences. Full
    sequences need neither, and eager's kernels are asked for by `is_causal`."""
    try:
        from transformers import masking_utils
    except ImportError:
        yield
        return
    replaced = {"is_torchdynamo_exporting": lambda: False, "find_packed_sequence_indices": lambda position_ids: None}
    before = {name: getattr(masking_utils, name) for name in replaced if hasattr(masking_utils, name)}
    for name in before:
        setattr(masking_utils, name, replaced[name])
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(masking_utils, name, function)


def read_config(path):
    """A config.json, or that of a folder, as a dictionary."""
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        with open(file, encoding="utf-8") as text:
            about = json.load(text)
    except (OSError, ValueError) as error:
        raise CaptureError(f"{file}: cannot be read as a config of transformers: {error}") from error
    if "model_type" not in about:
        raise CaptureError(f"{file}: has no \"model_type\", which a config of transformers has")
    return about


def load(path, untie, seed, numbers=True, about=None):
    """The causal or masked language model of a config.json, or of a folder with one; with the folder's weights, where it has any.
    Without `numbers` its parameters have types alone. `about`: instead of the file's config, for a model with initial weights."""
    try:
        import transformers
    except ImportError as error:
        raise CaptureError("--hf needs transformers: pip install transformers") from error
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    initial = about is not None or not numbers
    about = about or read_config(path)
    config = transformers.AutoConfig.for_model(**about)
    weights = [f for f in os.listdir(folder or ".") if f.endswith((".safetensors", ".bin"))] if os.path.isdir(path) and not initial else []
    kind = transformers.AutoModelForMaskedLM if masked(about) else transformers.AutoModelForCausalLM
    torch.manual_seed(seed)
    if weights:
        model = kind.from_pretrained(folder, config=config, dtype=torch.float32)
    else:
        with contextlib.nullcontext() if numbers else parameters_without_numbers():
            model = kind.from_config(config)
    if untie:
        untie_head(model)
    if not numbers:
        as_on_cpu(model)
    return Logits(model)


def masked(about):
    names = about.get("architectures") or [about["model_type"]]
    return any("MaskedLM" in name for name in names) or about["model_type"] in ("bert", "roberta")


def untie_head(model):
    """The head gets a copy of the embedding that it shares."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False
