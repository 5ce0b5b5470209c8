#!/usr/bin/env python3
"""Captures many models of torchvision and transformers, with random weights and small inputs, and says how
each compares with eager (docs/reference/captured_models.md).

    capture_table.py [NAME...]        NAME: torchvision (all its classification models), transformers, classes
    (of transformers, each with
                                      what the command line is told), timm, diffusers, segmentation
                                      and detection (torchvision's), or one model
        --seconds N   for one model (default: 300)      --memory GIB   for one model (default: 8)
        --markdown   rows of the table

Each model is captured in a process of its own. Needs transformers and torchvision: scripts/setup.sh --models;
for timm and diffusers these packages, which PYTHONPATH may name:
    pip install --no-deps --target FOLDER timm diffusers requests importlib_metadata zipp urllib3 certifi \
        charset-normalizer idna
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

SOURCE = os.path.abspath(f"{os.path.dirname(__file__)}/..")
sys.path[:0] = [f"{SOURCE}/python", f"{SOURCE}/examples/detector"]
from capture_table_classes import CLASSES  # noqa: E402
from capture_table_sources import sources  # noqa: E402

# transformers: "class": settings of its config. Everything is small, so that it is a matter of seconds.
TEXT = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    tie_word_embeddings=False,
    max_position_embeddings=64,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=1,
)
GROUPED = dict(TEXT, num_key_value_heads=2)
GEMMA = dict(GROUPED, head_dim=8, sliding_window=64)
EXPERTS = dict(
    GROUPED,
    num_experts=4,
    num_local_experts=4,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
)
CAUSAL: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": dict(GROUPED, head_dim=8),
    "mistral": GROUPED,
    "gpt2": dict(n_positions=64, n_embd=32, n_layer=2, n_head=4),
    "gemma": GEMMA,
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "phi": TEXT,
    "phi3": GROUPED,
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "olmo3": GROUPED,
    "gpt_neox": TEXT,
    "gpt_neo": dict(num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4, window_size=8),
    "gptj": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4),
    "gpt_bigcode": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "codegen": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4, n_ctx=64),
    "openai-gpt": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "opt": dict(TEXT, ffn_dim=64, word_embed_proj_dim=32),
    "bloom": dict(n_layer=2, n_head=4),
    "falcon": dict(TEXT, alibi=False),
    "mpt": dict(d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    "stablelm": GROUPED,
    "starcoder2": GROUPED,
    "granite": GROUPED,
    "cohere": GROUPED,
    "cohere2": dict(GROUPED, sliding_window=64),
    "glm": dict(GROUPED, head_dim=8),
    "glm4": dict(GROUPED, head_dim=8),
    "nemotron": GROUPED,
    "persimmon": TEXT,
    "helium": dict(GROUPED, head_dim=8),
    "smollm3": GROUPED,
    "exaone4": dict(GROUPED, sliding_window=64),
    "seed_oss": dict(GROUPED, head_dim=8),
    "arcee": GROUPED,
    "apertus": GROUPED,
    "ernie4_5": dict(GROUPED, head_dim=8),
    "hunyuan_v1_dense": dict(GROUPED, head_dim=8),
    "ministral": dict(GROUPED, head_dim=8),
    "diffllama": GROUPED,
    "bitnet": GROUPED,
    "modernbert-decoder": dict(TEXT, local_attention=16),
    "biogpt": TEXT,
    "xglm": dict(TEXT, d_model=32, ffn_dim=64, num_layers=2, attention_heads=4),
    "ctrl": dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, dff=64),
    "mixtral": EXPERTS,
    "qwen3_moe": dict(EXPERTS, head_dim=8),
    "olmoe": EXPERTS,
    "gpt_oss": dict(EXPERTS, head_dim=8),
    "mamba": dict(TEXT, state_size=4),
}
MASKED: dict[str, dict[str, Any]] = {
    "bert": TEXT,
    "roberta": TEXT,
    "distilbert": dict(dim=32, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=64),
    "albert": dict(TEXT, embedding_size=16),
    "electra": dict(TEXT, embedding_size=16),
    "deberta": TEXT,
    "deberta-v2": TEXT,
    "modernbert": dict(TEXT, local_attention=16),
    "mpnet": TEXT,
    "camembert": TEXT,
    "xlm-roberta": TEXT,
    "rembert": dict(TEXT, input_embedding_size=16, output_embedding_size=16),
    "roformer": dict(TEXT, embedding_size=32),
    "megatron-bert": TEXT,
    "roberta-prelayernorm": TEXT,
    "ernie": TEXT,
    "convbert": dict(TEXT, embedding_size=32),
    "esm": dict(TEXT, mask_token_id=2),
    "fnet": TEXT,
    "squeezebert": dict(TEXT, embedding_size=32),
    "mobilebert": dict(TEXT, embedding_size=16, intra_bottleneck_size=16),
    "data2vec-text": TEXT,
    "ibert": TEXT,
    "layoutlm": TEXT,
    "xmod": dict(TEXT, languages=["en_XX"], default_language="en_XX"),
    "nystromformer": dict(TEXT, segment_means_seq_len=64, num_landmarks=4),
    "eurobert": GROUPED,
}
HEADS: dict[str, dict[str, Any]] = {
    "bert": TEXT,
    "distilbert": MASKED["distilbert"],
    "roberta": TEXT,
    "deberta": TEXT,
    "deberta-v2": TEXT,
    "electra": MASKED["electra"],
    "albert": MASKED["albert"],
    "mpnet": TEXT,
    "xlm-roberta": TEXT,
    "camembert": TEXT,
    "modernbert": MASKED["modernbert"],
    "gpt2": {**CAUSAL["gpt2"], "pad_token_id": 1},
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": CAUSAL["qwen3"],
    "mistral": GROUPED,
}
VISION = dict(
    image_size=32,
    patch_size=8,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
)
IMAGES: dict[str, dict[str, Any]] = {
    "vit": VISION,
    "deit": VISION,
    "beit": dict(VISION, drop_path_rate=0.1, use_relative_position_bias=True),
    "convnext": dict(hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 2, 1], drop_path_rate=0.1, image_size=64),
    "convnextv2": dict(hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 2, 1], drop_path_rate=0.1, image_size=64),
    "swin": dict(image_size=64, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4),
    "swinv2": dict(image_size=64, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4),
    "resnet": dict(
        embedding_size=16,
        hidden_sizes=[16, 32, 32, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        image_size=64,
    ),
    "regnet": dict(
        embedding_size=16, hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 1, 1], groups_width=8, image_size=64
    ),
    "dinov2": VISION,
    "dinov2_with_registers": VISION,
    "data2vec-vision": VISION,
    "vit_msn": VISION,
    "ijepa": VISION,
    "bit": dict(embedding_size=32, hidden_sizes=[128, 128, 128, 256], depths=[1, 1, 1, 1], image_size=64),
    "efficientnet": dict(image_size=64, width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640),
    "mobilenet_v1": dict(image_size=64, depth_multiplier=0.25),
    "mobilenet_v2": dict(image_size=64),
    "mobilevit": dict(image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64]),
    "poolformer": dict(image_size=64, hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1]),
    "focalnet": dict(
        image_size=64,
        embed_dim=16,
        depths=[1, 1],
        hidden_sizes=[16, 32],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
    ),
    "segformer": dict(image_size=64, hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1]),
    "pvt": dict(
        image_size=64, num_attention_heads=[1, 2, 4, 8], hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1]
    ),
    "pvt_v2": dict(
        image_size=64, num_attention_heads=[1, 2, 4, 8], hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 1, 1]
    ),
    "hiera": dict(
        image_size=[64, 64],
        embed_dim=16,
        num_heads=[1, 2],
        depths=[1, 1],
        num_query_pool=1,
        masked_unit_size=[8, 8],
        query_stride=[2, 2],
    ),
    "levit": dict(
        image_size=64,
        hidden_sizes=[16, 32, 32],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        drop_path_rate=0,
    ),
    "cvt": dict(embed_dim=[8, 16, 32], depth=[1, 2, 3], num_heads=[1, 2, 2], image_size=64),
    "textnet": dict(image_size=64),
    "hgnet_v2": dict(image_size=64),
    "swiftformer": dict(image_size=64, depths=[1, 1, 1, 1], embed_dims=[8, 16, 32, 64]),
}


# "task": its models and the ending of their classes' names. The last three have their own losses.
TABLES: dict[str, Any] = {
    "causal": (CAUSAL, "ForCausalLM"),
    "masked": (MASKED, "ForMaskedLM"),
    "images": (IMAGES, "ForImageClassification"),
    "classes": (HEADS, "ForSequenceClassification"),
    "tokens": (HEADS, "ForTokenClassification"),
    "answers": (HEADS, "ForQuestionAnswering"),
}


def torchvision_model(name):
    import torchvision

    extra: dict[str, Any] = {}
    size = 64
    if name in ("googlenet", "inception_v3"):
        extra, size = dict(aux_logits=False, init_weights=False), 96
    if name.startswith("vit_"):
        extra, size = dict(image_size=56 if name == "vit_h_14" else 64), 56 if name == "vit_h_14" else 64
    if name.startswith("maxvit"):
        size = 224
    return torchvision.models.get_model(name, weights=None, num_classes=10, **extra), numbers(
        "x", 3, size, size
    )


def numbers(name, *shape):
    import torch

    from stagecraft_capture.batch import Batch, Field

    return Batch([Field(name, list(shape), torch.float32)])


def tokens(vocabulary, count=12, labels=()):
    from stagecraft_capture.batch import Batch, Field

    return Batch([Field("input_ids", [count], below=vocabulary), *labels])


def transformers_model(name):
    """ "name": the type of a config, with the task before it: causal:llama."""
    import transformers

    from stagecraft_capture import hugging_face
    from stagecraft_capture.tasks import TASKS, class_names

    task, _, kind = name.partition(":")
    table, about = TABLES[task][0], next(about for about in TASKS if about.ending == TABLES[task][1])
    settings, auto = dict(table[kind]), getattr(transformers, about.auto)
    if task == "images":
        config = transformers.AutoConfig.for_model(kind, num_labels=10, **settings)
        config.architectures = class_names(about, {"model_type": kind})
        size = settings.get("image_size", 64)
        size = size[0] if isinstance(size, list) else size
        return about.wrapper(auto.from_config(config)), numbers("pixel_values", 3, size, size)
    config = transformers.AutoConfig.for_model(kind, **{**settings, "vocab_size": 96})
    hugging_face.choose_experts(config)
    model = auto.from_config(config)
    hugging_face.untied_copies(model)
    if task in ("classes", "tokens", "answers"):
        return about.wrapper(model), tokens(96, labels=about.labels(config, 12))
    return about.wrapper(model), tokens(96, settings.get("segment_means_seq_len", 12))


def class_of_transformers(name):
    """The module, its batch and whether it returns its loss too, as the command has them. "name":
    class:WhisperForConditionalGeneration."""
    import shlex
    import tempfile

    from stagecraft_capture.arguments import parse
    from stagecraft_capture.source import load

    kind, settings, told = CLASSES[name.partition(":")[2]]
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/config.json", "w") as file:
            json.dump({"model_type": kind, "architectures": [name.partition(":")[2]], **settings}, file)
        return load(parse(["--hf", f"{folder}/config.json", "--untie", *shlex.split(told), "-o", "unused"]))


def from_source(name):
    """The same of a model that is made by a line of Python. "name": timm:mvitv2_tiny."""
    import shlex
    import tempfile

    from stagecraft_capture.arguments import parse
    from stagecraft_capture.source import load

    made, loss, told = sources()[name]
    group = name.partition(":")[0]
    package = {"segmentation": "torchvision", "detection": "detector, torchvision"}.get(group, group)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.py"
        with open(path, "w") as file:
            file.write(
                f"import torch, {package}\ndef build():\n    return {made}\n"
                f"def loss(output, batch):\n    return {loss}\n"
            )
        given = [f"{path}:build", "--loss", f"{path}:loss", *shlex.split(told), "-o", "unused"]
        return load(parse(given))


def one(name, gigabytes):
    """Captures a model; one line of JSON."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(gigabytes * 2**30), resource.RLIM_INFINITY))
    import warnings

    import torch

    warnings.simplefilter("ignore")
    from stagecraft_capture.capture import capture
    from stagecraft_capture.check import check
    from stagecraft_capture.errors import CaptureError
    from stagecraft_capture.folder import graph_name

    torch.set_num_threads(1)
    torch.manual_seed(0)
    begin, row = time.monotonic(), {"model": name}
    try:
        if name.startswith("class:"):
            module, batch, has_loss = class_of_transformers(name)
        elif name in sources():
            module, batch, has_loss = from_source(name)
        else:
            module, batch = transformers_model(name) if ":" in name else torchvision_model(name)
            has_loss = len(batch.fields) > 1
        model = capture(module, batch, has_loss)
        layers = model.layers
        row.update(
            layers=len(layers),
            graphs=len({graph_name(layer.graph) for layer in layers}),
            kept=sum(layer.kept for layer in layers),
            kept_all=sum(layer.kept_all for layer in layers),
        )
        row.update(
            check(module, model, batch.at(4)),
            operators=sorted(
                {
                    step[0]
                    for layer in layers
                    for part in ("forward", "backward_input", "backward_weight", "evaluate")
                    for step in layer.graph[part]["steps"]
                }
            ),
        )
    except CaptureError as error:
        row["refused"] = str(error)
    except MemoryError:
        row["refused"] = f"over {gigabytes:g} GiB"
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        row["refused" if "allocate memory" in text else "failed"] = (
            f"over {gigabytes:g} GiB" if "allocate memory" in text else text
        )
        if os.environ.get("TRACE"):
            raise
    row["seconds"] = round(time.monotonic() - begin, 1)
    print(json.dumps(row))


def result(row):
    if "refused" in row or "failed" in row:
        return f"refused: {row['refused']}" if "refused" in row else f"failed: {row['failed']}"
    equal = (
        row["output"] == row["evaluation"] == row.get("loss", "equal") == "equal"
        and row["gradients"] == row["equal"]
        and row["buffers"] == row["buffers_equal"]
    )
    if equal:
        return "equal"
    return (
        f"differs: output {row['output']}, evaluation {row['evaluation']}, {row['equal']} of"
        f" {row['gradients']} gradients and {row['buffers_equal']} of {row['buffers']} buffers equal, largest"
        f" difference {row['worst']:.1g}"
    )


def names_of(arguments):
    names = arguments.names or ["torchvision", "transformers", "classes"]
    out = []
    for name in names:
        if name == "torchvision":
            import torchvision

            out += torchvision.models.list_models(module=torchvision.models)
        elif name == "transformers":
            out += [f"{task}:{kind}" for task, (table, _) in TABLES.items() for kind in table]
        elif name in ("timm", "diffusers", "segmentation", "detection"):
            out += [each for each in sources() if each.startswith(f"{name}:")]
        elif name == "classes":
            out += [f"class:{kind}" for kind in CLASSES]
        else:
            out.append(name)
    return out


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--memory", type=float, default=8)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.names[0], arguments.memory)
        return
    for name in names_of(arguments):
        begin = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, __file__, "--one", name, "--memory", str(arguments.memory)],
                capture_output=True,
                text=True,
                timeout=arguments.seconds,
                check=False,
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            row = (
                json.loads(lines[-1])
                if lines
                else {
                    "model": name,
                    "failed": (done.stderr.strip().splitlines() or ["no output"])[-1],
                    "seconds": round(time.monotonic() - begin, 1),
                }
            )
        except subprocess.TimeoutExpired:
            row = {"model": name, "refused": f"over {arguments.seconds:g} s", "seconds": arguments.seconds}
        print(
            (
                f"| {row['model']} | {result(row)} |"
                if arguments.markdown
                else json.dumps({**row, "result": result(row)})
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
