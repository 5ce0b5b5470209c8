"""Captures models with fields of the batch, losses and heads of transformers, and holds every layer's replay
against eager, to the bit."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")
transformers = pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")

from capture_cases import equal_model, nn, numbers, refused, tokens
from places import covering
from stagecraft_capture.batch import Field, parse_field
from stagecraft_capture.errors import CaptureError
from stagecraft_capture.hugging_face import FIELDS
from stagecraft_capture.losses import WithLoss, cross_entropy, mse
from stagecraft_capture.tasks import TASKS, Logits


class Masked(nn.Module):
    """Reads a mask in two layers, and its own input again in the second."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, mask):
        y = self.a(x) * mask.cumsum(-1).eq(2)
        return self.b(y) * mask.logical_not() + x


def test_fields_and_losses():
    """Fields of the batch are found where layers read them; losses are captured behind the output, with what
    their means count."""
    torch.manual_seed(0)
    labels = {task.ending: task.labels for task in TASKS}

    def of(model, *names):
        return [FIELDS[name](model.wrapped.config, 12) for name in names]

    sizes = dict(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=False,
    )
    llama = Logits(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2)))
    model = equal_model(
        "llama, padded",
        llama,
        tokens(96, more=[*labels["ForCausalLM"](llama.wrapped.config, 12), *of(llama, "attention_mask")]),
        7,
        has_loss=True,
    )
    assert model.units == {"field": "labels", "ignore": -100, "from": 1} and model.reduction == "mean", (
        model.units
    )
    assert [layer.tensors.names["f"] for layer in model.layers].count(["attention_mask"]) == 2, (
        "each attention reads the mask"
    )
    assert model.layers[1].graph == model.layers[3].graph, "equal blocks share one graph"
    bert = Logits(transformers.BertForMaskedLM(transformers.BertConfig(**{**sizes, "num_hidden_layers": 1})))
    model = equal_model(
        "bert, padded",
        bert,
        tokens(
            96,
            more=[
                *labels["ForMaskedLM"](bert.wrapped.config, 12),
                *of(bert, "attention_mask", "token_type_ids"),
            ],
        ),
        8,
        has_loss=True,
    )
    assert model.units == {"field": "labels", "ignore": -100}, model.units
    batch = numbers(8, more=[parse_field("mask=bool[8]"), parse_field("targets=f32[8]")])
    model = equal_model("a mask and mse", WithLoss(Masked(), mse), batch, 2, has_loss=True)
    assert [layer.tensors.names["f"] for layer in model.layers] == [
        ["mask"],
        ["x", "mask"],
    ] and model.units is None
    images = WithLoss(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)),
        lambda output, batch: cross_entropy(output, batch) * 2,
    )
    model = equal_model(
        "a loss of one's own",
        images,
        numbers(8, name="input", more=[parse_field("targets=i64[]<5")]),
        2,
        has_loss=True,
    )
    assert model.units == {"field": "targets", "ignore": -100}, model.units
    summed = WithLoss(
        nn.Linear(8, 5),
        lambda output, batch: nn.functional.cross_entropy(output, batch["targets"], reduction="sum"),
    )
    model = equal_model(
        "a sum", summed, numbers(8, name="input", more=[Field("targets", [], below=5)]), 1, has_loss=True
    )
    assert model.reduction == "sum"
    learned = nn.Linear(8, 8)
    learned.forward = lambda input: nn.functional.linear(input, learned.weight)  # noqa: A006  # as Linear's
    refused(
        "a loss with parameters",
        WithLoss(learned, lambda output, batch: (output * learned.bias).sum()),
        numbers(8, name="input"),
        "the loss reads the weight 'bias', and a loss has no weights",
        "return it beside the output",
        has_loss=True,
    )
    for text in ("mask", "mask=f8[3]", "mask=bool[a]"):
        with pytest.raises(CaptureError, match=r"expected NAME=TYPE\[SIZES\]"):
            parse_field(text)


def test_tasks():
    """Heads of transformers besides language models', with their own losses: one of each architecture behind
    a block, which the others do without."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_attention_heads=4)
    labels = {task.ending: (task.labels, task.wrapper) for task in TASKS}
    classes, of_tokens = "ForSequenceClassification", "ForTokenClassification"
    every = (
        ("Bert", classes, 1, dict(num_labels=5), {"field": "labels", "ignore": -100}),
        ("Bert", classes, 0, dict(num_labels=1), None),
        (
            "Bert",
            classes,
            0,
            dict(num_labels=4, problem_type="multi_label_classification"),
            None,
        ),
        ("Bert", of_tokens, 0, dict(num_labels=5), {"field": "labels", "ignore": -100}),
        ("Bert", "ForQuestionAnswering", 0, {}, None),
        (
            "Llama",
            classes,
            1,
            dict(num_labels=5, pad_token_id=0),
            {"field": "labels", "ignore": -100},
        ),
    )
    repeated = [case for case in every if case[1] == of_tokens or case[3].get("num_labels") == 1]
    for kind, ending, blocks, more, units in covering(every, [c for c in every if c not in repeated]):
        config = getattr(transformers, f"{kind}Config")(**sizes, num_hidden_layers=blocks, **more)
        fields, wrapper = labels[ending]
        module = wrapper(getattr(transformers, kind + ending)(config))
        batch = tokens(
            96, more=[*fields(config, 12), *([FIELDS["attention_mask"](config, 12)] if blocks else [])]
        )
        model = equal_model(f"{kind}{ending} {more}", module, batch, 4 if blocks else 3, has_loss=True)
        assert model.units == units, (kind, ending, more, model.units)
