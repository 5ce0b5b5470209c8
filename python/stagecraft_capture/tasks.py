"""What models of transformers are for: the class that makes one, what it returns, and the labels that its
loss reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import companions
from .batch import Field
from .errors import CaptureError

if TYPE_CHECKING:
    from .aliases import Json


class Wrapped(torch.nn.Module):
    """Its names lose this wrapper's prefix in the model folder."""

    PREFIX = "wrapped."
    FIXED: Mapping[str, object] = {}  # arguments besides the batch
    LABELS: tuple[str, ...] = ("labels",)

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.wrapped = model
        self.base_prefix = base_prefix(model)
        self.untied: dict[str, str] = {}  # names of weights that are copies now: whose
        self.source = "."  # the folder that the config lies in
        self.stated_dtype = None  # the config's
        self.stated_positions = None  # likewise: max_position_embeddings
        self.fixed = {
            name: value
            for name, value in self.FIXED.items()
            if name in inspect.signature(model.forward).parameters
        }

    def forward(self, **batch: torch.Tensor) -> Any:
        """Logits; with labels, (logits, loss)."""
        made = self.wrapped(**batch, **self.fixed)
        return (made.logits, made.loss) if "labels" in batch else made.logits

    def write_companions(self, folder: str) -> None:
        companions.write(self.wrapped, self.source, folder)


class Logits(Wrapped):
    """A language model, or a classifier of texts, from tokens to logits."""

    FIXED: Mapping[str, object] = {"use_cache": False}


class Translation(Logits):
    """From the tokens of two texts, or of one and its labels, which the model shifts into the second, to the
    logits of the second."""


class Images(Wrapped):
    """A classifier from images to logits."""

    def sample_shape(self) -> list[int]:
        config = self.wrapped.config
        size = getattr(config, "image_size", None) or 224
        return [
            getattr(config, "num_channels", 3),
            *(size if isinstance(size, (list, tuple)) else (size, size)),
        ]


class Answers(Wrapped):
    """From tokens to the logits of an answer's first and last token, [b, tokens, 2]. The loss is
    transformers', computed from these."""

    LABELS = ("start_positions", "end_positions")

    def forward(self, **batch: torch.Tensor) -> Any:
        given = {name: tensor for name, tensor in batch.items() if name not in self.LABELS}
        made = self.wrapped(**given)
        logits = torch.stack([made.start_logits, made.end_logits], dim=-1)
        if len(given) == len(batch):
            return logits
        beyond = logits.shape[1]  # a position behind the last token does not count
        losses = [
            torch.nn.functional.cross_entropy(
                logits[..., i], batch[name].clamp(0, beyond), ignore_index=beyond
            )
            for i, name in enumerate(self.LABELS)
        ]
        return logits, (losses[0] + losses[1]) / 2


class Named(Wrapped):
    """Any other class, which the config names. What it reads and what it returns, it says itself."""

    FIXED: Mapping[str, object] = {"use_cache": False}

    def forward(self, **batch: torch.Tensor) -> Any:
        """Its first result; (its first result, its loss) where it has one of such fields."""
        made = self.wrapped(**batch, **self.fixed)
        numbers = (
            value
            for name, value in made.items()
            if name != "loss" and isinstance(value, torch.Tensor) and value.is_floating_point()
        )
        output, loss = next(numbers, None), made.get("loss")
        if output is None:
            raise CaptureError(
                f"{type(self.wrapped).__name__} returns {', '.join(made.keys())}, and no tensor of numbers;"
                " give FILE.py:NAME, with a module that returns the one tensor that the loss reads"
            )
        return output if loss is None else (output, loss)

    def has_loss(self, fields: dict[str, torch.Tensor]) -> bool:
        with torch.no_grad():
            return isinstance(self(**fields), tuple)


def base_prefix(model: torch.nn.Module) -> str:
    """What transformers puts before the names of a model without its head, where it becomes one with a head;
    and leaves out the other way."""
    name = getattr(model, "base_model_prefix", "")
    return f"{name}." if name else ""


# Labels, for samples of `tokens` tokens, which may be those of a second text. None: a model of images has no
# tokens.
def next_tokens(config: Any, tokens: int) -> list[Field]:
    # a causal model shifts them itself
    return [Field("labels", [tokens], below=config.vocab_size, ignore=-100, source="inputs")]


def masked_tokens(config: Any, tokens: int) -> list[Field]:
    return [Field("labels", [tokens], below=config.vocab_size, ignore=-100)]


def one_class(config: Any, tokens: int) -> list[Field]:
    """Or numbers, where the config asks for a regression or for several classes at once."""
    count, problem = config.num_labels, getattr(config, "problem_type", None)
    if problem == "multi_label_classification" or (problem == "regression" and count > 1):
        return [Field("labels", [count], torch.float32, source="targets")]
    if problem == "regression" or (problem is None and count == 1):
        return [Field("labels", [], torch.float32, source="targets")]
    return [Field("labels", [], below=count, source="targets")]


def classes_of_tokens(config: Any, tokens: int) -> list[Field]:
    return [Field("labels", [tokens], below=config.num_labels, ignore=-100)]


def answers(config: Any, tokens: int) -> list[Field]:
    return [Field(name, [], below=tokens) for name in Answers.LABELS]


@dataclass(frozen=True)
class Task:
    ending: str  # of the classes' names
    auto: str  # the class of transformers that makes one of a config
    mapping: str  # its name in transformers.models.auto.modeling_auto
    labels: Callable[[Any, int], list[Field]]  # from a config and the tokens of a sample to fields
    wrapper: type = Logits


# A config without architectures becomes the first that knows its type.
TASKS = (
    Task(
        "ForConditionalGeneration",
        "AutoModelForSeq2SeqLM",
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        masked_tokens,
        Translation,
    ),
    Task("ForMaskedLM", "AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", masked_tokens),
    Task(
        "ForImageClassification",
        "AutoModelForImageClassification",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        one_class,
        Images,
    ),
    Task("ForCausalLM", "AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", next_tokens),
    Task(
        "ForSequenceClassification",
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        one_class,
    ),
    Task(
        "ForTokenClassification",
        "AutoModelForTokenClassification",
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
        classes_of_tokens,
    ),
    Task(
        "ForQuestionAnswering",
        "AutoModelForQuestionAnswering",
        "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
        answers,
        Answers,
    ),
)


def task_of(about: Json) -> Task | None:
    """Of a config, a dictionary; or None: it names another class, or none."""
    from transformers.models.auto import modeling_auto

    known = [task for task in TASKS if about["model_type"] in getattr(modeling_auto, task.mapping)]
    for name in about.get("architectures") or []:
        for task in known:
            of_type = getattr(modeling_auto, task.mapping)[about["model_type"]]
            if (
                name.endswith(task.ending)
                or name in (of_type if isinstance(of_type, tuple) else (of_type,))
                or (name.endswith("LMHeadModel") and task.ending == "ForCausalLM")
            ):
                return task
    return None if about.get("architectures") else next(iter(known), None)


def classes_of_type(model_type: str) -> list[str]:
    """Of the tasks, those that configs of the type make."""
    from transformers.models.auto import modeling_auto

    found = [getattr(modeling_auto, task.mapping).get(model_type) for task in TASKS]
    return [name for names in found if names for name in ([names] if isinstance(names, str) else names)]


def class_names(task: Task, about: Json) -> list[str]:
    """What a config's architectures are: its own, or else the one class that the task has for its type."""
    from transformers.models.auto import modeling_auto

    known = getattr(modeling_auto, task.mapping).get(about["model_type"])
    return about.get("architectures") or [known if isinstance(known, str) else known[0]]
