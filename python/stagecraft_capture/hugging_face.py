"""Hugging Face models: from a config or a folder, as a module of tasks.py."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import inspect
import os
import re
import sys
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import torch

from stagecraft_tools.json_files import read_json
from stagecraft_tools.refusal import Refused

from .batch import Batch, Field, parse_field, sizes_in
from .errors import CaptureError, missing
from .no_weights import as_on_cpu, parameters_without_numbers
from .precision import COMPUTED, in_precision
from .routed import Routed, has_router_loss, with_hooks
from .tasks import TASKS, Logits, Named, Translation, class_names, classes_of_type, task_of

if TYPE_CHECKING:
    from .aliases import Json
    from .tasks import Task, Wrapped


# Of these models the encoder fails under export without a padding mask, which eager mode makes of ones.
NEED_A_MASK = ("longt5", "udop", "switch_transformers")
COMPILING = "is_torchdynamo_compiling"


@contextlib.contextmanager
def eager_masks(fields: Collection[str]) -> Iterator[None]:
    """transformers takes other paths under export than in eager mode: it writes out causal masks, multiplies
    experts by an operator of its own, and looks for packed sequences. Full sequences need neither mask nor
    look, and eager's kernels are asked for by `is_causal`. Of the `fields` of a batch "position_ids" say
    where documents begin: there the mask follows from them, as in eager mode wherever a micro-batch has a
    document that does not begin its row."""
    masking_utils = sys.modules.get("transformers.masking_utils")  # a model of theirs has brought it
    if masking_utils is None:
        yield
        return
    replaced = {
        "is_torchdynamo_exporting": lambda: False,
        "find_packed_sequence_indices": lambda position_ids: None,
    }
    if "position_ids" in fields:
        del replaced["find_packed_sequence_indices"]
    before = [
        (masking_utils, name, getattr(masking_utils, name))
        for name in replaced
        if hasattr(masking_utils, name)
    ]
    modelings = [f"transformers.models.{kind}.modeling_{kind}" for kind in NEED_A_MASK]
    for name in [*modelings, "transformers.integrations.moe"]:
        modeling = sys.modules.get(name)
        if modeling is not None and hasattr(modeling, COMPILING):
            before.append((modeling, COMPILING, getattr(modeling, COMPILING)))
    for module, name, _ in before:
        setattr(module, name, replaced.get(name, lambda: False))
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def config_file(path: str) -> str:
    return os.path.join(path, "config.json") if os.path.isdir(path) else path


def download(path: str) -> str:
    """What to do: where a path is missing and looks like a name on the Hugging Face Hub, how it becomes a
    folder."""
    if os.path.exists(path) or not re.fullmatch(r"[\w.-]+/[\w.-]+", path) or path.endswith(".json"):
        return "; give a config.json as save_pretrained() writes it, or a folder with one"
    return (
        f"; --hf takes a file or a folder. If this is a name on the Hub: hf download {path} --local-dir"
        f" {path.rpartition('/')[2]}"
    )


def read_config(path: str) -> Json:
    """A config.json, or that of a folder, as a dictionary."""
    file = config_file(path)
    try:
        about = read_json(file)
    except (OSError, Refused) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{file}: ")
        raise CaptureError(
            f"{file}: cannot be read as a config of transformers: {why}{download(path)}"
        ) from error
    if not isinstance(about, dict) or "model_type" not in about:
        raise CaptureError(
            f'{file}: has no "model_type", which a config of transformers has: give one, or FILE.py:NAME'
        )
    return about


def config_of(arguments: argparse.Namespace) -> Json:
    """The config, with the class that --architecture names."""
    about = read_config(arguments.hf)
    if arguments.architecture:
        about["architectures"] = [checked_class(arguments.architecture, about["model_type"])]
    return about


def checked_class(name: str, model_type: str) -> str:
    import transformers

    kind = getattr(transformers, name, None)
    of_type = getattr(getattr(kind, "config_class", None), "model_type", None)
    if of_type is None:
        near = difflib.get_close_matches(name, classes_of_type(model_type)) or classes_of_type(model_type)
        raise CaptureError(
            f"--architecture {name}: is no model of transformers; for a config of type {model_type!r} there"
            f" are {', '.join(near)}"
        )
    if of_type != model_type:
        raise CaptureError(
            f"--architecture {name}: is made of configs of type {of_type!r}, and this one is of type"
            f" {model_type!r}; for that there are {', '.join(classes_of_type(model_type))}"
        )
    return name


def load(
    arguments: argparse.Namespace, numbers: bool = True, about: Json | None = None
) -> tuple[Wrapped, Task | None]:
    """The model of a config.json, or of a folder with one; with the folder's weights, where it has any; and
    its task. Without `numbers` its parameters have types alone. `about`: instead of the file's config, for a
    model with initial weights. It is made in float32, whatever the config's dtype: a run's steps update
    float32 weights."""
    try:
        import transformers
    except ImportError as error:
        raise CaptureError(missing("transformers")) from error
    path = arguments.hf
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    initial = about is not None or not numbers
    about = about or config_of(arguments)
    if about["model_type"] not in transformers.CONFIG_MAPPING:
        raise CaptureError(
            f"{config_file(path)}: transformers {transformers.__version__} knows no model of type"
            f" {about['model_type']!r}: install a version that does, or give FILE.py:NAME"
        )
    config = transformers.AutoConfig.for_model(**about)
    weights = (
        [f for f in os.listdir(folder or ".") if f.endswith((".safetensors", ".bin"))]
        if os.path.isdir(path) and not initial
        else []
    )
    task = task_of(about)
    if task is None:
        kind = named_class(path, about)

        def make(**how: Any) -> torch.nn.Module:
            return kind._from_config(config, **how)
    else:
        kind, config.architectures = getattr(transformers, task.auto), class_names(task, about)

        def make(**how: Any) -> torch.nn.Module:
            return kind.from_config(config, **how)

    choose_experts(config)
    torch.manual_seed(arguments.seed)
    if weights:
        model = kind.from_pretrained(folder, config=config, dtype=torch.float32)
    else:
        with contextlib.nullcontext() if numbers else parameters_without_numbers():
            model = make(dtype=torch.float32)
    untied = untied_copies(model) if arguments.untie else {}
    arguments.dtype = in_precision(model, arguments.dtype, arguments.full)
    if not numbers:
        as_on_cpu(model)
    with_hooks(model)
    usual = task.wrapper if task else Named
    wrapped = (Routed if usual is Logits and has_router_loss(model) else usual)(model)
    wrapped.untied, wrapped.source = untied, folder or "."
    wrapped.stated_dtype = about.get("dtype") or about.get("torch_dtype")
    wrapped.stated_positions = about.get("max_position_embeddings")
    return wrapped, task


def named_class(path: str, about: Json) -> Any:
    """The class of transformers that a config names, where it is for none of the tasks that are known
    here."""
    import transformers

    names = about.get("architectures") or []
    found = next((getattr(transformers, name) for name in names if hasattr(transformers, name)), None)
    if found is None:
        endings = ", ".join(f"...{known.ending}" for known in TASKS)
        raise CaptureError(
            f"{config_file(path)}: models of type {about['model_type']!r} are none of {endings}; name the"
            ' class in "architectures", or give FILE.py:NAME, with a module that returns the one tensor that'
            " the loss reads"
        )
    return found


def choose_experts(config: Any) -> None:
    """Experts by grouped products, which keep as much as the tokens they get. "batched_mm" copies an expert's
    weights for each token; "eager" asks which tokens go where, and takes other operators for each answer."""
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        config._experts_implementation = experts_way(config)


def experts_way(config: Any) -> str:
    """Kernels of grouped products take rows of a multiple of 16 bytes, of narrow types too."""
    names = ("hidden_size", "intermediate_size", "moe_intermediate_size")
    widths = [width for name in names if isinstance(width := getattr(config, name, None), int)]
    chosen = config._experts_implementation == "batched_mm" or any(width % 8 for width in widths)
    return "batched_mm" if chosen else "grouped_mm"


# Fields besides labels that models of transformers take, by their names, for samples of so many tokens.
FIELDS = {
    "attention_mask": lambda config, tokens: Field("attention_mask", [tokens], lengths=True, fill=1),
    "token_type_ids": lambda config, tokens: Field(
        "token_type_ids", [tokens], below=getattr(config, "type_vocab_size", 2), fill=0
    ),
    "position_ids": lambda config, tokens: Field("position_ids", [tokens], positions=True),
}


def names_in(fields: str | None) -> list[str]:
    """Of --fields; labels where it is not given."""
    return ["labels"] if fields is None else [name for name in fields.split(",") if name]


def load_with_batch(arguments: argparse.Namespace, about: Json | None = None) -> tuple[Wrapped, Batch, bool]:
    """The model, what it reads, and whether it returns its loss. `about`: of load()."""
    model, task = load(arguments, numbers=about is not None or not arguments.no_weights, about=about)
    if task is None:
        return named_with_batch(model, arguments)
    names, config = names_in(arguments.fields), model.wrapped.config
    images = hasattr(model, "sample_shape")
    second = isinstance(model, Translation)
    target = (arguments.target_sequence or arguments.sequence) if second else arguments.sequence
    if arguments.target_sequence and not second:
        raise CaptureError(
            "--target-sequence is for models that read two texts; this one reads one: leave it out"
        )
    if arguments.vocabulary and arguments.vocabulary != getattr(config, "vocab_size", None):
        raise CaptureError(
            f"--vocabulary {arguments.vocabulary}: the config says what this model reads: leave it out, or"
            " change vocab_size there"
        )
    known = ("labels",) if images else ("labels", *FIELDS)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CaptureError(f"--fields {arguments.fields}: {unknown[0]!r} is none of {', '.join(known)}")
    if images:
        fields = [
            Field(
                "pixel_values",
                sizes_in(arguments.input) if arguments.input else model.sample_shape(),
                COMPUTED[arguments.dtype],
            )
        ]
    elif arguments.sequence:
        fields = [Field("input_ids", [arguments.sequence], below=config.vocab_size)]
    else:
        raise CaptureError("give --sequence N, the tokens of a sample: --hf needs it for models of text")
    if second and "labels" not in names:
        fields.append(Field("decoder_input_ids", [target], below=config.vocab_size))
    for name in names:
        fields += (
            task.labels(config, target) if name == "labels" else [FIELDS[name](config, arguments.sequence)]
        )
    return model, Batch(with_named(fields, model.wrapped, arguments)), "labels" in names


def with_named(fields: list[Field], module: torch.nn.Module, arguments: argparse.Namespace) -> list[Field]:
    """With those of --field, which go before others of their names."""
    named, takes = (
        [parse_field(text) for text in arguments.field],
        inspect.signature(module.forward).parameters,
    )
    unknown = next((field.name for field in named if field.name not in takes), None)
    if unknown:
        raise CaptureError(f"--field {unknown}: {type(module).__name__}.forward takes {', '.join(takes)}")
    names = {field.name: field for field in named}
    known = {field.name for field in fields}
    return [names.get(field.name, field) for field in fields] + [
        field for field in named if field.name not in known
    ]


# What models of transformers call inputs of numbers.
NUMBERS = ("pixel_values", "input_values", "input_features")


def named_with_batch(model: Wrapped, arguments: argparse.Namespace) -> tuple[Wrapped, Batch, bool]:
    """The same for a class of none of the tasks: it reads its main input, and fields that are named."""
    module, config = model.wrapped, model.wrapped.config
    takes, kind = inspect.signature(module.forward).parameters, type(module).__name__
    if arguments.input:
        name = next(
            (name for name in (module.main_input_name, *NUMBERS) if name in takes and name != "input_ids"),
            module.main_input_name,
        )
        first = Field(name, sizes_in(arguments.input), COMPUTED[arguments.dtype])
    elif arguments.sequence:
        first = Field(
            module.main_input_name,
            [arguments.sequence],
            below=arguments.vocabulary or config.get_text_config().vocab_size,
        )
    else:
        raise CaptureError(
            f"{kind} reads {module.main_input_name}: give its sizes with --input for numbers, or --sequence"
            " for tokens"
        )
    asked = names_in(arguments.fields)
    for name in asked if arguments.fields is not None else ():
        if name not in takes or name not in ("labels", *FIELDS):
            raise CaptureError(
                f"--fields {arguments.fields}: {kind} reads no {name}{other_classes(config, name)}"
            )
    more = [
        FIELDS[name](config, arguments.sequence) for name in asked if name in FIELDS and arguments.sequence
    ]
    fields = with_named([first, *more], module, arguments)
    names = [field.name for field in fields]
    if "labels" in takes and "labels" in asked and "labels" not in names:
        raise CaptureError(
            f"{kind} has a loss on labels: give --field labels=TYPE[SIZES], as in labels=i64[128]<1000, or"
            ' --fields "" to capture it without'
        )
    batch = Batch(fields)
    return model, batch, model.has_loss(batch.at(2))


def other_classes(config: Any, name: str) -> str:
    """What to do where a class has no labels."""
    found = classes_of_type(config.model_type) if name == "labels" else []
    return f"; --architecture takes a class that does: {', '.join(found)}" if found else "; leave it out"


def untied_copies(model: torch.nn.Module) -> dict[str, str]:
    """Each further name of a weight gets a copy of its own: a head its embedding's, a decoder its encoder's.
    Returns whose copy each is."""
    first: dict[int, str] = {}
    untied: dict[str, str] = {}
    changed = set()
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if first.setdefault(id(parameter), name) == name:
            continue
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        # a module with two paths has one weight
        if module._parameters.get(leaf) is parameter and id(module) not in changed:
            module._parameters[leaf] = torch.nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            untied[name] = first[id(parameter)]
            changed.add(id(module))
    model.config.tie_word_embeddings = False
    return untied
