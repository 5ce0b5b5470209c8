#!/usr/bin/env python3
"""Profiles a PyTorch nn.Sequential for Stagecraft's planner, and says where to split it.

    python scripts/profile_torch.py profile FILE.py:NAME --input 3,224,224 --micro-batch 4 8 --loss cross_entropy -o profile.json
    stagecraft plan --profile profile.json --cluster CLUSTER.json --schedule 1f1b -o plan.json
    python scripts/profile_torch.py split plan.json profile.json

`profile` measures every layer of the model (nested Sequentials are opened) by itself: forward, gradient of its input, gradient of
its weights, optimizer step, and which bytes autograd keeps between them. FILE.py:NAME, or package.module:NAME, is a Sequential or a
function that returns one. `split` prints a plan's stages as torch.distributed.pipelining wants them. docs/guides/pytorch.md.
Bad input: a message, exit code 2.
"""

import argparse
import importlib
import importlib.util
import inspect
import json
import os
import statistics
import sys
import time
from pathlib import Path

OPTIMIZERS = {  # bytes of state a byte of parameters, and how to make one
    "none": (0, None),
    "sgd": (0, lambda torch, p: torch.optim.SGD(p, lr=1e-6)),
    "momentum": (1, lambda torch, p: torch.optim.SGD(p, lr=1e-6, momentum=0.9)),
    "adam": (2, lambda torch, p: torch.optim.Adam(p, lr=1e-6)),
    "adamw": (2, lambda torch, p: torch.optim.AdamW(p, lr=1e-6)),
}
INTEGERS = ("int64", "int32")
FLOATS = ("float32", "bfloat16", "float16", "float64")


class BadInput(Exception):
    pass


def load_object(name):
    """What FILE.py:NAME or package.module:NAME names."""
    where, _, what = name.rpartition(":")
    if not where or not what:
        raise BadInput(f"model {name!r}: expected FILE.py:NAME or package.module:NAME")
    try:
        if where.endswith(".py"):
            if not Path(where).is_file():
                raise BadInput(f"{where}: no such file")
            sys.path.insert(0, str(Path(where).resolve().parent))
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(where)
    except (ImportError, SyntaxError) as error:
        raise BadInput(f"{where}: {error}") from error
    if not hasattr(module, what):
        raise BadInput(f"{where} has no {what!r}")
    return getattr(module, what)


def layers_of(model, prefix=""):
    """(qualified name, module) of every layer, nested Sequentials opened."""
    from torch import nn
    layers = []
    for name, child in model.named_children():
        if isinstance(child, nn.Sequential):
            layers += layers_of(child, f"{prefix}{name}.")
        else:
            layers.append((prefix + name, child))
    return layers


def open_model(name):
    from torch import nn
    made = load_object(name)
    if not isinstance(made, nn.Module):
        if not callable(made):
            raise BadInput(f"{name} is of type {type(made).__name__}: expected an nn.Sequential or a function that returns one")
        try:
            inspect.signature(made).bind()
        except (TypeError, ValueError) as error:
            raise BadInput(f"{name} is to be called without arguments: {error}") from error
        made = made()
    if not isinstance(made, nn.Sequential):
        raise BadInput(f"{name} is of type {type(made).__name__}: expected an nn.Sequential, or a function that returns one; a stage is a "
                       "stretch of layers, each taking what the one before returns")
    if not layers_of(made):
        raise BadInput(f"{name} has no layers")
    for module in made.modules():  # a layer by itself cannot overwrite its input, which autograd holds
        if getattr(module, "inplace", False):
            module.inplace = False
    return made.train()


class Clock:
    """Milliseconds of a call, on the device."""

    def __init__(self, torch, device):
        self.cuda = torch.cuda if device.type == "cuda" else None

    def ms(self, call):
        if self.cuda:
            begin, end = self.cuda.Event(enable_timing=True), self.cuda.Event(enable_timing=True)
            begin.record()
            result = call()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end), result
        begin = time.perf_counter()
        result = call()
        return (time.perf_counter() - begin) * 1e3, result


def timing(samples):
    if len(samples) < 2:
        return {"median_ms": samples[0], "spread_ms": 0.0}
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return {"median_ms": middle, "spread_ms": high - low}


def storage(tensor):
    return tensor.untyped_storage()


def tensor_bytes(tensor):
    return tensor.numel() * tensor.element_size()


class Saved:
    """What autograd keeps of one forward."""

    def __init__(self, torch, own):
        self.own = {storage(t).data_ptr() for t in own}
        self.tensors = []
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.keep, lambda tensor: tensor)

    def keep(self, tensor):
        self.tensors.append(tensor)
        return tensor

    def has(self, tensor):
        return any(storage(t).data_ptr() == storage(tensor).data_ptr() for t in self.tensors)

    def other_bytes(self, *known):
        """Of what is neither a parameter nor one of `known`, each storage once."""
        taken = self.own | {storage(t).data_ptr() for t in known}
        sizes = {storage(t).data_ptr(): storage(t).nbytes() for t in self.tensors if storage(t).data_ptr() not in taken}
        return sum(sizes.values())


def measure_layer(torch, name, call, parameters, buffers, source, first, args, clock):
    """The row of one layer, and its output. `source` is its input, detached."""
    needs_input = not first and source.is_floating_point()

    def forward(given):
        try:
            output = call(given)
        except Exception as error:
            raise BadInput(f"layer {name!r} does not take {tuple(source.shape)} of {source.dtype}: {error}") from error
        if not isinstance(output, torch.Tensor):
            raise BadInput(f"layer {name!r} returns a {type(output).__name__}: a boundary between layers is one tensor")
        return output

    def fresh():
        return source.detach().requires_grad_(needs_input)

    saved = Saved(torch, [*parameters, *buffers])
    given = fresh()
    with saved.hooks:
        output = forward(given)
    kept = saved.other_bytes(given, output)
    view = storage(output).data_ptr() == storage(given).data_ptr()
    weighted = bool(parameters) and output.requires_grad
    row = {
        "name": name,
        "parameter_bytes": sum(map(tensor_bytes, parameters)),
        "buffer_bytes": sum(map(tensor_bytes, buffers)),
        "output_bytes": tensor_bytes(output) if output.dim() else 0,
        "kept_for_input_bytes": kept,
        "kept_for_weight_bytes": kept if weighted else 0,
        "keeps_input": saved.has(given),
        "keeps_output": saved.has(output) and not view,
        "weight_half_keeps_gradient": weighted,
        "output_is_input": view,
    }
    result = output.detach()
    saved.tensors.clear()
    del given, output

    wanted = [p for p in parameters if p.requires_grad]
    times = {"forward": [], "backward_input": [], "backward_weight": []}
    for repeat in range(args.warm_up + args.repeats):
        given = fresh()
        forward_ms, output = clock.ms(lambda given=given: forward(given))
        gradient = torch.randn_like(output)
        input_ms = whole_ms = 0.0
        if output.requires_grad:
            if needs_input:
                input_ms, _ = clock.ms(lambda o=output, x=given, g=gradient: torch.autograd.grad(o, x, g, retain_graph=True, allow_unused=True))
            if wanted:
                inputs = [given, *wanted] if needs_input else wanted
                whole_ms, _ = clock.ms(lambda o=output, i=inputs, g=gradient: torch.autograd.grad(o, i, g, allow_unused=True))
        del output
        if repeat >= args.warm_up:
            times["forward"].append(forward_ms)
            times["backward_input"].append(input_ms)
            times["backward_weight"].append(max(0.0, whole_ms - input_ms))
    row.update({key: timing(samples) for key, samples in times.items()})
    if wanted and OPTIMIZERS[args.optimizer][1]:
        row["step"] = timing(measure_step(torch, wanted, args, clock))
    if clock.cuda:
        measure_peaks(torch, row, forward, fresh, wanted, needs_input, clock)
    return row, result


def measure_step(torch, parameters, args, clock):
    optimizer = OPTIMIZERS[args.optimizer][1](torch, parameters)
    samples = []
    for repeat in range(args.warm_up + args.repeats):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)  # zeros would be timed as denormals
        ms, _ = clock.ms(optimizer.step)
        if repeat >= args.warm_up:
            samples.append(ms)
    for parameter in parameters:
        parameter.grad = None
    return samples


def measure_peaks(torch, row, forward, fresh, wanted, needs_input, clock):
    """Bytes above what stays, at the worst moment of each half. CUDA's allocator counts them; CPU's does not."""
    given = fresh()
    before = clock.cuda.memory_allocated()
    clock.cuda.reset_peak_memory_stats()
    output = forward(given)
    row["forward_transient_bytes"] = max(0, clock.cuda.max_memory_allocated() - clock.cuda.memory_allocated())
    inputs = [given] * needs_input + wanted
    if not output.requires_grad or not inputs:
        return
    gradient = torch.randn_like(output)
    before = clock.cuda.memory_allocated()
    clock.cuda.reset_peak_memory_stats()
    made = torch.autograd.grad(output, inputs, gradient, allow_unused=True)
    stays = sum(tensor_bytes(t) for t in made if t is not None)
    row["backward_transient_bytes"] = clock.cuda.max_memory_allocated() - before - stays


def make_input(torch, args, size, device):
    shape = (size, *args.input)
    if args.input_dtype in INTEGERS:
        return torch.randint(args.below, shape, dtype=getattr(torch, args.input_dtype), device=device)
    return torch.randn(shape, dtype=getattr(torch, args.dtype), device=device)


def make_loss(torch, kind, output):
    """The loss as a function of the model's output, and its targets."""
    if kind == "mse":
        targets = torch.randn_like(output)
        return (lambda x: torch.nn.functional.mse_loss(x, targets)), targets
    if output.dim() < 2:
        raise BadInput(f"--loss cross_entropy wants outputs of [samples, ..., classes]; the model returns {tuple(output.shape)}")
    classes = output.shape[-1]
    targets = torch.randint(classes, output.shape[:-1], device=output.device)
    return (lambda x: torch.nn.functional.cross_entropy(x.reshape(-1, classes), targets.reshape(-1))), targets


def progress(text):
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}\033[K")
        sys.stderr.flush()


def measure(torch, layers, size, args, device, clock):
    x = make_input(torch, args, size, device)
    measurement = {"micro_batch": size, "input_bytes": tensor_bytes(x), "targets_bytes": 0, "layers": []}
    for index, (name, layer) in enumerate(layers):
        progress(f"micro-batch {size}: layer {index + 1} of {len(layers)}, {name}")
        row, x = measure_layer(torch, name, layer, list(layer.parameters()), list(layer.buffers()), x, index == 0, args, clock)
        measurement["layers"].append(row)
    if args.loss != "none":
        loss, targets = make_loss(torch, args.loss, x)
        measurement["targets_bytes"] = tensor_bytes(targets)
        row, _ = measure_layer(torch, "loss", loss, [], [], x, False, args, clock)
        measurement["layers"].append(row)
    progress("")
    return measurement


def check_names(layers, args):
    names = [name for name, _ in layers]
    if args.loss != "none" and "loss" in names:
        raise BadInput('a layer is called "loss", which is what the profile calls the loss: rename it, or profile with --loss none')


def write_json(path, value):
    """Aside, synced, renamed: no reader sees half of it."""
    aside = f"{path}.{os.getpid()}.tmp"
    try:
        with open(aside, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        Path(aside).unlink(missing_ok=True)
        raise BadInput(f"{path}: {error.strerror}") from error


def print_table(measurement):
    rows = [("layer", "forward ms", "input grad ms", "weight grad ms", "step ms", "parameters", "output", "kept")]
    for layer in measurement["layers"]:
        ms = [layer.get(key, {}).get("median_ms") for key in ("forward", "backward_input", "backward_weight", "step")]
        kilobytes = [layer[key] / 1024 for key in ("parameter_bytes", "output_bytes", "kept_for_input_bytes")]
        rows.append((layer["name"], *("-" if t is None else f"{t:.3f}" for t in ms), *(f"{b:.1f} KiB" for b in kilobytes)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]))


def profile(args):
    try:
        import torch
    except ImportError as error:
        raise BadInput(f"{error}: this needs Python's torch (scripts/setup.sh brings one)") from error
    if not Path(args.output).resolve().parent.is_dir():  # not after minutes of measuring
        raise BadInput(f"{args.output}: no such folder")
    if args.input_dtype in INTEGERS and args.below < 1:
        raise BadInput(f"--input-dtype {args.input_dtype} wants --below N: the numbers of the input are 0 to N - 1")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: PyTorch sees no CUDA device here")
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    model = open_model(args.model).to(device=device, dtype=getattr(torch, args.dtype))
    layers = layers_of(model)
    check_names(layers, args)
    clock = Clock(torch, device)
    value = {
        "model": args.model,
        "dtype": args.dtype,
        "device": args.device,
        "threads": args.threads,
        "repeats": args.repeats,
        "optimizer": "" if args.optimizer == "none" else args.optimizer,
        "optimizer_bytes_per_parameter_byte": OPTIMIZERS[args.optimizer][0],
        "measurements": [measure(torch, layers, size, args, device, clock) for size in sorted(set(args.micro_batch))],
    }
    write_json(args.output, value)
    for measurement in value["measurements"]:
        print(f"micro-batch of {measurement['micro_batch']}:")
        print_table(measurement)
        print()
    if device.type == "cpu":
        print("Peaks inside a layer are not measured on CPU: predicted memory leaves them out.")
    print(f"written to {args.output}; next: stagecraft plan --profile {args.output} --cluster CLUSTER.json -o plan.json")


def read_json(path):
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from error


def split(args):
    plan, profile_json = read_json(args.plan), read_json(args.profile)
    try:
        names = [layer["name"] for layer in profile_json["measurements"][0]["layers"]]
        stages = [(stage["first_layer"], stage["last_layer"], stage["ranks"]) for stage in plan["stages"]]
        schedule = plan["schedule"]["name"]
    except (KeyError, IndexError, TypeError) as error:
        raise BadInput(f"{args.plan}, {args.profile}: not a plan and the profile it was made from (no {error})") from error
    if not stages or stages[-1][1] != len(names):
        raise BadInput(f"{args.plan} is a plan of {stages[-1][1] if stages else 0} layers, but {args.profile} has {len(names)}: "
                       "expected the profile that the plan was made from")
    has_loss = names[-1] == "loss"
    cuts = [names[first] for first, _, _ in stages[1:]]
    rows = [{"stage": index, "ranks": ranks, "first": names[first], "last": names[last - 1 - (has_loss and last == len(names) and last - first > 1)]}
            for index, (first, last, ranks) in enumerate(stages)]
    if args.json:
        print(json.dumps({"schedule": schedule, "micro_batches": plan["micro_batches"], "split_before": cuts, "stages": rows}, indent=1))
        return
    print("# Stages:")
    for row in rows:
        print(f"#   {row['stage']} on rank{'s' if len(row['ranks']) > 1 else ''} {', '.join(map(str, row['ranks']))}: "
              f"{row['first']} to {row['last']}")
    print(f"# Schedule {schedule}, {plan['micro_batches']} micro-batches of {plan['micro_batch_size']}.")
    print("from torch.distributed.pipelining import SplitPoint, pipeline\n")
    print("split_spec = {")
    for cut in cuts:
        print(f"    {cut!r}: SplitPoint.BEGINNING,")
    print("}")
    print("pipe = pipeline(model, mb_args=(one_micro_batch,), split_spec=split_spec)")


def shape(text):
    try:
        sizes = tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        sizes = (0,)
    if any(size < 1 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r}: expected sizes of one sample, such as 3,224,224")
    return sizes


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("profile", help="measure a model's layers")
    verb.add_argument("model", metavar="FILE.py:NAME", help="a Sequential, or a function that returns one")
    verb.add_argument("--input", type=shape, required=True, metavar="SIZES", help="of one sample: 3,224,224")
    verb.add_argument("--input-dtype", choices=FLOATS[:1] + INTEGERS, default="float32", help="float32: the model's own dtype")
    verb.add_argument("--below", type=positive, default=0, metavar="N", help="whole-number inputs are 0 to N - 1")
    verb.add_argument("--micro-batch", type=positive, nargs="+", required=True, metavar="N", help="samples; several sizes may be given")
    verb.add_argument("--loss", choices=("none", "cross_entropy", "mse"), default="none", help="measured as the last layer")
    verb.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    verb.add_argument("--dtype", choices=FLOATS, default="float32", help="of the model")
    verb.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    verb.add_argument("--threads", type=positive, default=1, help="of operators; as many as a rank will have")
    verb.add_argument("--repeats", type=positive, default=10)
    verb.add_argument("--warm-up", type=positive, default=3)
    verb.add_argument("-o", "--output", default="profile.json")
    verb.set_defaults(run=profile)
    verb = verbs.add_parser("split", help="print a plan's split points")
    verb.add_argument("plan", metavar="plan.json")
    verb.add_argument("profile", metavar="profile.json", help="that the plan was made from")
    verb.add_argument("--json", action="store_true")
    verb.set_defaults(run=split)
    args = parser.parse_args()
    try:
        args.run(args)
    except BadInput as error:
        raise SystemExit(f"profile_torch.py: {error}") from None


if __name__ == "__main__":
    try:
        main()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            sys.exit(2)
        raise
