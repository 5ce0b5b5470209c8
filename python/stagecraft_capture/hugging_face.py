"""Hugging Face models: from a config or a folder, as a module that returns logits alone."""

import contextlib
import json
import os

import torch

from . import companions
from .errors import CaptureError, missing


class Wrapped(torch.nn.Module):
    """Its names lose this wrapper's prefix in the model folder."""

    PREFIX = "wrapped."

    def __init__(self, model):
        super().__init__()
        self.wrapped = model
        self.base_prefix = base_prefix(model)
        self.untied = {}  # names of weights that are copies now: whose
        self.source = "."  # the folder that the config lies in

    def write_companions(self, folder):
        companions.write(self.wrapped, self.source, folder)


class Logits(Wrapped):
    """A language model from tokens to logits."""

    def forward(self, input_ids):
        return self.wrapped(input_ids=input_ids, use_cache=False).logits


class Images(Wrapped):
    """A classifier from images to logits."""

    def forward(self, pixel_values):
        return self.wrapped(pixel_values=pixel_values).logits


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


def load(path, untie, seed):
    """The causal or masked language model of a config.json, or of a folder with one; with the folder's weights, where it has any."""
    try:
        import transformers
    except ImportError as error:
        raise CaptureError(missing("transformers")) from error
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        with open(file, encoding="utf-8") as text:
            about = json.load(text)
    except (OSError, ValueError) as error:
        raise CaptureError(f"{file}: cannot be read as a config of transformers: {error}") from error
    if "model_type" not in about:
        raise CaptureError(f"{file}: has no \"model_type\", which a config of transformers has")
    config = transformers.AutoConfig.for_model(**about)
    weights = [f for f in os.listdir(folder or ".") if f.endswith((".safetensors", ".bin"))] if os.path.isdir(path) else []
    kind = transformers.AutoModelForMaskedLM if masked(about) else transformers.AutoModelForCausalLM
    torch.manual_seed(seed)
    if weights:
        model = kind.from_pretrained(folder, config=config, dtype=torch.float32)
    else:
        model = kind.from_config(config)
    untied = untie_head(model) if untie else {}
    logits = Logits(model)
    logits.untied, logits.source = untied, folder or "."
    return logits


def base_prefix(model):
    """What transformers puts before the names of a model without its head, where it becomes one with a head; and leaves out the other way."""
    name = getattr(model, "base_model_prefix", "")
    return f"{name}." if name else ""


def masked(about):
    names = about.get("architectures") or [about["model_type"]]
    return any("MaskedLM" in name for name in names) or about["model_type"] in ("bert", "roberta")


def untie_head(model):
    """The head gets a copy of the embedding that it shares. Returns its name, and the embedding's."""
    untied, head, embedding = {}, model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is getattr(embedding, "weight", None):
        of = {id(module): name for name, module in model.named_modules(remove_duplicate=False)}
        untied[f"{of[id(head)]}.weight"] = f"{of[id(embedding)]}.weight"
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    return untied
