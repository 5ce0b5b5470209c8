"""Hugging Face models: from a config or a folder, as a module that returns logits alone."""

import contextlib
import json
import os

import torch

from . import companions
from .batch import Batch, Field, sizes_in
from .errors import CaptureError, missing
from .no_weights import as_on_cpu, parameters_without_numbers


class Wrapped(torch.nn.Module):
    """Its names lose this wrapper's prefix in the model folder."""

    PREFIX = "wrapped."
    FIXED = {}  # arguments besides the batch

    def __init__(self, model):
        super().__init__()
        self.wrapped = model
        self.base_prefix = base_prefix(model)
        self.untied = {}  # names of weights that are copies now: whose
        self.source = "."  # the folder that the config lies in

    def forward(self, **batch):
        """Logits; with labels, (logits, loss)."""
        made = self.wrapped(**batch, **self.FIXED)
        return (made.logits, made.loss) if "labels" in batch else made.logits

    def write_companions(self, folder):
        companions.write(self.wrapped, self.source, folder)


class Logits(Wrapped):
    """A language model from tokens to logits."""

    FIXED = {"use_cache": False}


class Images(Wrapped):
    """A classifier from images to logits."""

    def sample_shape(self):
        config = self.wrapped.config
        size = getattr(config, "image_size", None) or 224
        return [getattr(config, "num_channels", 3), *(size if isinstance(size, (list, tuple)) else (size, size))]


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


def config_file(path):
    return os.path.join(path, "config.json") if os.path.isdir(path) else path


def read_config(path):
    """A config.json, or that of a folder, as a dictionary."""
    file = config_file(path)
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
        raise CaptureError(missing("transformers")) from error
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    initial = about is not None or not numbers
    about = about or read_config(path)
    config = transformers.AutoConfig.for_model(**about)
    weights = [f for f in os.listdir(folder or ".") if f.endswith((".safetensors", ".bin"))] if os.path.isdir(path) and not initial else []
    kind = kind_of(about, config_file(path))
    choose_experts(config)
    torch.manual_seed(seed)
    if weights:
        model = kind.from_pretrained(folder, config=config, dtype=torch.float32)
    else:
        with contextlib.nullcontext() if numbers else parameters_without_numbers():
            model = kind.from_config(config)
    images = kind is transformers.AutoModelForImageClassification
    untied = untie_head(model) if untie and not images else {}
    if not numbers:
        as_on_cpu(model)
    logits = Images(model) if images else Logits(model)
    logits.untied, logits.source = untied, folder or "."
    return logits


def choose_experts(config):
    """Experts by batched products: the other ways ask which tokens go where, and take other operators for each answer."""
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        config._experts_implementation = "batched_mm"


# Fields that models of transformers take, by their names, for samples of s tokens.
FIELDS = {
    "labels": lambda s, config: Field("labels", [s], below=config.vocab_size, ignore=-100),
    "attention_mask": lambda s, config: Field("attention_mask", [s], lengths=True, fill=1),
    "token_type_ids": lambda s, config: Field("token_type_ids", [s], below=getattr(config, "type_vocab_size", 2), fill=0),
    "position_ids": lambda s, config: Field("position_ids", [s], below=s),
}


def load_with_batch(arguments, about=None):
    """The model, what it reads, and whether it returns its loss. `about`: of load()."""
    model = load(arguments.hf, arguments.untie, arguments.seed, numbers=about is not None or not arguments.no_weights, about=about)
    names = [name for name in arguments.fields.split(",") if name]
    unknown = [name for name in names if name not in FIELDS]
    if unknown:
        raise CaptureError(f"--fields {arguments.fields}: {unknown[0]!r} is none of {', '.join(FIELDS)}")
    if hasattr(model, "sample_shape"):
        shape = sizes_in(arguments.input) if arguments.input else model.sample_shape()
        labels = [Field("labels", [], below=model.wrapped.config.num_labels, source="targets")] if "labels" in names else []
        return model, Batch([Field("pixel_values", shape, torch.float32), *labels]), bool(labels)
    if not arguments.sequence:
        raise CaptureError("--hf needs --sequence for language models: the tokens of a sample")
    config = model.wrapped.config
    fields = [Field("input_ids", [arguments.sequence], below=config.vocab_size), *(FIELDS[name](arguments.sequence, config) for name in names)]
    for field in fields:
        if field.name == "labels" and not masked_model(model.wrapped):
            field.source = "inputs"  # a causal model shifts them itself
    return model, Batch(fields), "labels" in names


def masked_model(model):
    return type(model).__name__.endswith("ForMaskedLM")


def base_prefix(model):
    """What transformers puts before the names of a model without its head, where it becomes one with a head; and leaves out the other way."""
    name = getattr(model, "base_model_prefix", "")
    return f"{name}." if name else ""


def kind_of(about, file):
    """The class of transformers that makes the model: what the config's architectures say, else the first that knows its type."""
    import transformers
    from transformers.models.auto import modeling_auto

    classes = {
        "ForMaskedLM": (transformers.AutoModelForMaskedLM, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        "ForImageClassification": (transformers.AutoModelForImageClassification, modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
        "ForCausalLM": (transformers.AutoModelForCausalLM, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    }
    for name in about.get("architectures") or []:
        for ending, (kind, _) in classes.items():
            if name.endswith(ending) or (name.endswith("LMHeadModel") and ending == "ForCausalLM"):
                return kind
    for kind, known in classes.values():
        if about["model_type"] in known:
            return kind
    raise CaptureError(f"{file}: models of type {about['model_type']!r} are neither language models nor image classifiers; give FILE.py:NAME, with a module that returns the one tensor that the loss reads")


def untie_head(model):
    """The head gets a copy of the embedding that it shares. Returns its name, and the embedding's."""
    untied, head, embedding = {}, model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is getattr(embedding, "weight", None):
        of = {id(module): name for name, module in model.named_modules(remove_duplicate=False)}
        untied[f"{of[id(head)]}.weight"] = f"{of[id(embedding)]}.weight"
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    return untied
