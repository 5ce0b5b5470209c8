"""Captures modules that are no chain of usual layers, and others in narrow types, beside eager to the bit;
and tries what is refused of them."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")
torchvision = pytest.importorskip("torchvision", reason="scripts/setup.sh --models installs it")
transformers = pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")

from capture_cases import equal, equal_model, nn, numbers, refused, tokens
from forked import stagecraft_capture
from places import FULL, covering
from stagecraft_capture.batch import Batch, Field
from stagecraft_capture.errors import CaptureError
from stagecraft_capture.hugging_face import choose_experts
from stagecraft_capture.losses import WithLoss, cross_entropy
from stagecraft_capture.precision import master_of, narrow, patterns
from stagecraft_capture.routed import Routed, has_router_loss, with_hooks
from stagecraft_capture.tasks import Logits

LLAMA = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=64,
    tie_word_embeddings=False,
)


# Forks come before this process runs a backward (forked.py).
def command(folder, config, *arguments):
    Path(f"{folder}/config.json").write_text(json.dumps(config))
    return stagecraft_capture("--hf", f"{folder}/config.json", *arguments, "-o", f"{folder}/model")


def test_more_tokens_than_the_config_has_positions(folder):
    """Rotary positions have no table that ends, so the model computes all the same."""
    small = dict(LLAMA, model_type="llama", architectures=["LlamaForCausalLM"], max_position_embeddings=16)
    said = "the config says max_position_embeddings 16; captured with 24 tokens"
    done = command(folder, small, "--sequence", "24")
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
    done = command(folder, small, "--sequence", "16")
    assert done.returncode == 0 and "max_position_embeddings" not in done.stdout, done.stdout + done.stderr


def test_classes_that_configs_name(folder):
    whisper = dict(
        model_type="whisper",
        architectures=["WhisperForConditionalGeneration"],
        vocab_size=64,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=12,
        max_target_positions=12,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    done = command(folder, whisper, "--untie", "--input", "8,24")
    assert done.returncode == 2 and "give --field labels=TYPE[SIZES]" in done.stderr, done.stderr
    done = command(folder, whisper, "--untie", "--input", "8,24", "--field", "lables=i64[6]<64")
    assert (
        done.returncode == 2
        and "--field lables: WhisperForConditionalGeneration.forward takes input_features" in done.stderr
    ), done.stderr
    done = command(folder, whisper, "--untie", "--input", "8,24", "--field", "labels=i64[6]<64")
    assert done.returncode == 0 and "output equals eager's, loss equals eager's" in done.stdout, (
        done.stdout + done.stderr
    )
    with open(f"{folder}/model/manifest.json") as file:
        manifest = json.load(file)
    assert manifest["loss"]["units"] == {"field": "labels", "ignore": -100}, manifest["loss"]
    encoder = dict(
        model_type="bert",
        architectures=["BertModel"],
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    done = command(folder, encoder, "--sequence", 8, "--fields", "labels,attention_mask")
    assert (
        done.returncode == 2
        and "BertModel reads no labels; --architecture takes a class that does: BertForMaskedLM, "
        in done.stderr
    ), done.stderr
    done = command(folder, encoder, "--sequence", 8, "--architecture", "BertForMaskdLM")
    assert (
        done.returncode == 2
        and "is no model of transformers; for a config of type 'bert' there are BertForMaskedLM"
        in done.stderr
    ), done.stderr
    done = command(folder, encoder, "--sequence", 8, "--architecture", "LlamaForCausalLM")
    assert (
        done.returncode == 2 and "configs of type 'llama', and this one is of type 'bert'" in done.stderr
    ), done.stderr
    done = command(folder, encoder, "--sequence", 8, "--fields", "attention_mask")
    assert done.returncode == 0 and "loss equals" not in done.stdout, done.stdout + done.stderr
    done = command(
        folder,
        encoder,
        "--sequence",
        8,
        "--architecture",
        "BertForMaskedLM",
        "--untie",
        "--fields",
        "labels,attention_mask",
    )
    assert (
        done.returncode == 0 and "BertForMaskedLM: " in done.stdout and "loss equals eager's" in done.stdout
    ), done.stdout + done.stderr
    with open(f"{folder}/model/hugging_face/config.json") as file:
        assert json.load(file)["architectures"] == ["BertForMaskedLM"]
    done = command(folder, {"model_type": "llama", "dtype": "bfloat16", **LLAMA}, "--sequence", 8)
    assert done.returncode == 0 and "captured in float32: --dtype bfloat16" in done.stdout, (
        done.stdout + done.stderr
    )
    done = command(
        folder,
        {"model_type": "llama", **LLAMA},
        "--sequence",
        8,
        "--dtype",
        "float16",
        "--full",
        "model.norm",
    )
    assert done.returncode == 2 and "fails in eager mode" in done.stderr, done.stderr
    done = command(folder, {"model_type": "llama", **LLAMA}, "--sequence", 8, "--dtype", "float16")
    assert done.returncode == 0, done.stderr
    stored = safetensors.load_file(f"{folder}/model/weights.safetensors")
    assert {t.dtype for t in stored.values()} == {torch.float32} and any(
        not torch.equal(t, t.half().float()) for t in stored.values()
    )


class Recurrent(nn.Module):
    def __init__(self, kind, **how):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(50, 8), kind(8, 12, batch_first=True, **how)
        self.head = nn.Linear(self.rnn(torch.zeros(1, 1, 8))[0].shape[-1], 4)

    def forward(self, input_ids):
        return self.head(self.rnn(self.embed(input_ids))[0])


def operators(layers):
    """All that their graphs call in training, in their order."""
    return [
        step[0]
        for layer in layers
        for part in ("forward", "backward_input", "backward_weight")
        for step in layer.graph[part]["steps"]
    ]


def test_recurrent_layers():
    torch.manual_seed(0)
    layers = equal(
        "LSTM, two layers, both directions, dropout",
        Recurrent(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.2),
        tokens(50, 5),
        3,
    )
    used = operators(layers)
    assert used.count("stagecraft::lstm") == used.count("stagecraft::lstm_backward") == 4, used
    assert sum(layer.graph["multiply_adds"] for layer in layers) == 5 * (
        2 * 48 * (8 + 12) + 2 * 48 * (24 + 12) + 24 * 4
    )
    if FULL:
        equal("LSTM without biases", Recurrent(nn.LSTM, bias=False), tokens(50, 5), 3)
    equal(
        "LSTM with projections, which oneDNN does not do", Recurrent(nn.LSTM, proj_size=6), tokens(50, 3), 3
    )
    layers = equal("GRU, both directions", Recurrent(nn.GRU, bidirectional=True), tokens(50, 4), 3)
    used = operators(layers)
    for half in ("gru", "gru_backward", "gru_backward_weight"):
        assert used.count(f"stagecraft::{half}") == 2, used
    assert sum(layer.graph["multiply_adds"] for layer in layers) == 4 * (2 * 36 * (8 + 12) + 24 * 4)
    if FULL:
        equal("GRU with biases", Recurrent(nn.GRU), tokens(50, 3), 3)
    equal("GRU without biases, two layers", Recurrent(nn.GRU, bias=False, num_layers=2), tokens(50, 3), 3)
    equal("RNN", Recurrent(nn.RNN, nonlinearity="relu"), tokens(50, 4), 3)


class Normalized(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.a, self.b = how(nn.Linear(8, 16)), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        y = self.a(x)
        return self.b(torch.cond(y.sum() > 0, lambda t: t.relu(), lambda t: t.tanh(), (y,)))


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(50, 8), nn.Linear(8, 4)

    def forward(self, input_ids):
        return self.head(self.bag(input_ids))


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.both = nn.Linear(4, 6), nn.Bilinear(6, 6, 4)

    def forward(self, x):
        return self.both(self.net(x[:, :4]), self.net(x[:, 4:]))


class Converts(nn.Module):
    """Its head is converted in each forward to what it is."""

    def __init__(self, convert):
        super().__init__()
        self.a, self.b, self.convert = nn.Linear(8, 16), nn.Linear(16, 4), convert

    def forward(self, x):
        y = self.a(x).relu()
        self.convert(self.b, y)
        return self.b(y)


class Unread(nn.Module):
    """Its first dropout is of no use, and draws all the same."""

    def __init__(self, always=False):
        super().__init__()
        self.a, self.b, self.always = nn.Linear(8, 16), nn.Linear(16, 4), always

    def forward(self, x):
        y = self.a(x)
        nn.functional.dropout(y, 0.5, self.training)
        return self.b(nn.functional.dropout(y, 0.25, self.training or self.always))


class Delayed(nn.Module):
    """A time delay layer, as x-vectors have it: its weight's gradient lies as the weight, turned."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Linear(3 * 8, 4)

    def forward(self, x):
        weight = self.kernel.weight.view(4, 3, 8).transpose(1, 2)
        return nn.functional.conv1d(x, weight, self.kernel.bias)


def test_modules():
    torch.manual_seed(0)
    equal("a dropout that nothing reads", Unread(), numbers(8), 2)
    for name, convert in (
        ("a type", lambda module, y: module.to(torch.float32)),
        ("type and device by name", lambda module, y: module.to(dtype=y.dtype, device=y.device)),
        ("a tensor's", lambda module, y: module.to(y)),
        ("float()", lambda module, y: module.float()),
    )[slice(None) if FULL else slice(1, 3)]:
        equal(f"a module converted to {name}", Converts(convert), numbers(8), 2)
    refused("dropout in evaluation", Unread(always=True), numbers(8), "in evaluation too", "self.training")
    equal("a weight read as a convolution's", Delayed(), numbers(8, 20), 1)
    equal("weight norm of old", Normalized(torch.nn.utils.weight_norm), numbers(8), 2)
    equal("spectral norm", Normalized(torch.nn.utils.parametrizations.spectral_norm), numbers(8), 2)
    equal("spectral norm of old", Normalized(torch.nn.utils.spectral_norm), numbers(8), 2)
    equal("bilinear", Pairs(), numbers(8), 1)
    refused("branches", Branches(), numbers(8), "torch.cond", "torch.where")
    equal("bags", Bags(), tokens(50, 4), 2)


class Segments(nn.Module):
    """As SegFormer: a linear layer's tokens become an image with channels last, are resized, and classified
    by pixel."""

    def __init__(self, **how):
        super().__init__()
        self.linear, self.norm, self.head, self.how = (
            nn.Linear(8, 8),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 4, 1),
            how,
        )

    def forward(self, x):
        x = self.linear(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(-1, 8, 6, 6)
        return self.head(torch.relu(self.norm(nn.functional.interpolate(x, **self.how))))


class NormalizedTokens(nn.Module):
    """As PatchTST: batch norm of what a transpose hands it."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x):
        return self.b(self.norm(self.a(x).transpose(1, 2)).transpose(1, 2))


def test_the_loss_of_routers():
    """It is transformers' own, to the bit, with padding and without; captured, it equals eager."""
    config = transformers.AutoConfig.for_model(
        "mixtral",
        **{**LLAMA, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2},
        num_local_experts=4,
        output_router_logits=True,
        router_aux_loss_coef=0.5,
    )
    choose_experts(config)
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(config)
    assert has_router_loss(module)
    with_hooks(module)
    routed = Routed(module)
    fields = [Field("input_ids", [8], below=64), Field("labels", [8], below=64, ignore=-100)]
    mask = Field("attention_mask", [8], lengths=True)
    for batch in (Batch(fields), Batch([*fields, mask])):
        of_both = []
        for loss_of in (lambda given: module(**given).loss, lambda given: routed(**given)[1]):
            module.zero_grad()
            loss = loss_of(batch.at(4))
            loss.backward()
            of_both.append([loss.detach(), *(p.grad.clone() for p in module.parameters())])
        for theirs, ours in zip(*of_both):
            assert torch.equal(theirs, ours)
    without = module(**batch.at(4), output_router_logits=False).loss
    assert not torch.equal(without, of_both[0][0])  # the routers' loss is in it
    aux = module(**batch.at(4)).aux_loss
    assert torch.equal(routed(**batch.at(4))[2]["aux_loss"], aux)
    model = equal_model("experts and the loss of their routers", routed, batch, 4, has_loss=True)
    assert model.terms == ["aux_loss"]
    assert model.units == {"field": "labels", "ignore": -100, "from": 1}
    assert any(len(layer.graph["outputs"]) > 1 for layer in model.layers)  # the routers' logits go on


class Experts(nn.Module):
    """As docs/guides/pytorch.md has them."""

    def __init__(self, experts=4, width=8, inner=16):
        super().__init__()
        self.experts, self.gate = experts, nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, inner) / 4)
        self.down = nn.Parameter(torch.randn(experts, inner, width) / 4)

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weight, expert = self.gate(tokens).softmax(-1).topk(2)
        place = expert.flatten().argsort(stable=True)
        ends = nn.functional.one_hot(expert.flatten(), self.experts).sum(0).cumsum(0).int()
        rows = nn.functional.grouped_mm(tokens[place // 2], self.up, offs=ends).relu()
        rows = nn.functional.grouped_mm(rows, self.down, offs=ends)
        made = rows[place.argsort()].view(len(tokens), 2, -1)
        return (made * weight.unsqueeze(-1)).sum(1).view(x.shape)


class Blocks(nn.Sequential):
    def forward(self, x):
        return super().forward(x)


class Batched(Experts):
    def forward(self, x):
        weights = nn.functional.grouped_mm(self.up, self.down)  # without ends
        return self.gate(x).softmax(-1) @ weights.mean((1, 2)).unsqueeze(-1)


def test_experts_of_ones_own():
    torch.manual_seed(0)
    equal("experts by hand", Blocks(Experts(), nn.LayerNorm(8), Experts(6)), numbers(5, 8), 4)
    refused(
        "grouped products without ends",
        Batched(),
        numbers(3, 8),
        "grouped_mm with bias or out_dtype, or without",
    )


def test_experts_keep_what_their_tokens_are():
    """And no copy of a weight for each of them."""
    hidden, inner, tokens, chosen = 16, 256, 8, 2
    config = transformers.AutoConfig.for_model(
        "mixtral",
        **{**LLAMA, "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": 2},
        num_local_experts=4,
        num_experts_per_tok=chosen,
    )
    choose_experts(config)
    torch.manual_seed(0)
    module = Logits(transformers.AutoModelForCausalLM.from_config(config))
    layers = equal("experts in groups", module, Batch([Field("input_ids", [tokens], below=64)]), 4)
    steps = [name for layer in layers for name, *_ in layer.graph["forward"]["steps"]]
    assert steps.count("stagecraft::grouped_mm") == 2 * config.num_hidden_layers
    for layer in layers:
        if any(name == "stagecraft::grouped_mm" for name, *_ in layer.graph["forward"]["steps"]):
            # what a token brings and takes, and what lies between its two products, in float32
            assert 0 < layer.kept <= tokens * chosen * (8 * hidden + 5 * inner) * 4
            assert (
                layer.kept_all < tokens * chosen * 3 * hidden * inner * 4 / 4
            )  # a quarter of copied weights


def test_layouts():
    """Kernels choose their sums and the strides of their results by the strides of what they are given."""
    torch.manual_seed(0)
    modes = covering(("nearest", "nearest-exact", "bilinear", "bicubic"), ("nearest-exact", "bicubic"))
    for how in [{"mode": m, "scale_factor": 2} for m in modes] + [
        {"mode": "bilinear", "size": (9, 13), "align_corners": True}
    ]:
        layers = equal(f"channels last, resized by {how['mode']}", Segments(**how), numbers(8, 6, 6), 2)
        steps = [name for layer in layers for name, *_ in layer.graph["forward"]["steps"]]
        assert any("upsample_" in name for name in steps) and "aten::index.Tensor" not in steps, steps
    batch = numbers(8, 6, 6, more=[Field("targets", [12, 12], below=4, source="targets")])
    model = equal_model(
        "pixels, with channels last for the loss",
        WithLoss(
            Segments(mode="bilinear", scale_factor=2),
            lambda output, batch: nn.functional.cross_entropy(output, batch["targets"]),
        ),
        batch,
        2,
        has_loss=True,
    )
    assert model.layers[-1].graph["outputs"] == ["f32[b,12,12,4]"], model.layers[-1].graph["outputs"]
    equal("batch norm of transposed tokens", NormalizedTokens(), numbers(6, 8), 2)
    equal(
        "shrinking",
        nn.Sequential(
            nn.Linear(8, 8), nn.Hardshrink(0.1), nn.Linear(8, 8), nn.Softshrink(0.1), nn.Linear(8, 4)
        ),
        numbers(8, name="input"),
        2,
    )


def test_narrow_types():
    torch.manual_seed(0)
    module = torchvision.models.resnet18(num_classes=10)
    given = {name: p.detach().clone() for name, p in module.named_parameters()}
    narrow(module, torch.bfloat16, patterns("layer4.*.bn1,Linear", module))
    types = {name: p.dtype for name, p in module.named_parameters()}
    assert [n for n, t in types.items() if t == torch.float32] == [
        "layer4.0.bn1.weight",
        "layer4.0.bn1.bias",
        "layer4.1.bn1.weight",
        "layer4.1.bn1.bias",
        "fc.weight",
        "fc.bias",
    ], types
    assert (
        module.bn1.running_mean.dtype == torch.bfloat16
        and module.layer4[0].bn1.running_mean.dtype == torch.float32
    )
    assert all(torch.equal(master_of(p), given[name]) for name, p in module.named_parameters())
    with pytest.raises(CaptureError, match=r"no module's path.*BatchNorm2d"):
        patterns("layer4.bn1", module)

    norms = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(288),
        nn.Linear(288, 4),
    )
    narrow(norms, torch.bfloat16, patterns("*Norm*", norms))
    batch = numbers(
        3, 8, 8, name="input", more=[Field("targets", [], below=4, ignore=-100, source="targets")]
    )
    batch.drawn["input"] = batch.drawn["input"].bfloat16()
    layers = equal(
        "bfloat16 with norms in float32, and its loss in float32",
        WithLoss(norms, cross_entropy),
        batch,
        2,
        has_loss=True,
    )
    assert layers[-1].graph["outputs"] == ["bf16[b,4]"] and any(
        "f32[8]" in layer.graph["parameters"] for layer in layers
    )
    plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    narrow(plain, torch.bfloat16, ["1"])
    batch = numbers(8, name="input")
    batch.drawn["input"] = batch.drawn["input"].bfloat16()
    refused(
        "a linear layer in float32 behind a narrow one",
        plain,
        batch,
        "module '1'",
        "fails in eager mode",
        "dtype",
    )

    rotary = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    narrow(rotary, torch.bfloat16)
    assert rotary.model.rotary_emb.inv_freq.dtype == torch.float32
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    )
    narrow(t5, torch.float16)
    wide = {name.split(".")[-2] for name, p in t5.named_parameters() if p.dtype == torch.float32}
    assert wide == {"wo"}, wide
