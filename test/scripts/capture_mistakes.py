"""What a capture says of modules and losses with a mistake that people make: rows of REFUSED in
capture_refusals_test.py. Each word is of the one line: the place in the user's file, and what to do."""

from pathlib import Path

from places import SOURCE

MISTAKES = f"{SOURCE}/test/data/captured/mistakes.py"
NUMBERS = ("--input", "8")
BY_NUMBERS = ("depends on the batch's numbers", "choose with torch.where")
IN_TENSORS = ("depends on the batch's numbers", "keep all sizes and numbers in tensors")
OF_SAMPLES = "the model fails on samples of x of float32[2, 8]: "


def line_of(text):
    before, _ = Path(MISTAKES).read_text().split(text)
    return f"line {before.count(chr(10)) + 1}"


# Of each module words of the line; the place comes besides.
MODULES = {
    "flattened_wrongly": (OF_SAMPLES, "shape '[-1, 7]' is invalid for input of size 32"),
    "batch_of_four": (OF_SAMPLES, "shape '[4, 16]' is invalid"),
    "wrong_axis": (OF_SAMPLES, "IndexError: Dimension out of range"),
    "integer_linear": (OF_SAMPLES, "must have the same dtype", "convert with .to(other.dtype)"),
    "unequal_types": (OF_SAMPLES, "must have the same dtype", "convert with .to(other.dtype)"),
    "on_a_gpu": ("leave .cuda() out: runs bring layers to their devices",),
    "broadcast": (OF_SAMPLES, "must match the size of tensor b (3)"),
    "transposed": (OF_SAMPLES, "mat1 and mat2 shapes cannot be multiplied"),
    "looped": BY_NUMBERS,
    "while_large": (*BY_NUMBERS, "while x.norm() > 1:"),
    "as_a_list": IN_TENSORS,
    "as_an_int": BY_NUMBERS,
    "elsewhere": (*BY_NUMBERS, "in checked"),
    "by_mask": IN_TENSORS,
    "by_mask_before": (*IN_TENSORS, "(found = x[x > 0])", "cannot branch later (", "if len(found) > 1"),
    "as_a_key": BY_NUMBERS,
    "packed": ("give the recurrent layer the padded ones",),
    "CountsUp": ("self.calls += 1", "changes 'calls' from 0 to 1", "register_buffer"),
    "Appends": ("self.history.append(x.mean())", "'history[0]', which is no buffer", "register_buffer"),
    "MakesParameters": ("self.late = ", "changes the parameter 'late'"),
    "ListOfLayers": ("has no parameters", "torch.nn.ModuleList"),
    "HalfInAList": ("reads the weight 'rest[0].weight', which is no parameter", "torch.nn.ModuleList"),
    "Misspelt": ("return self.c(self.a(x))", "has no attribute 'c'"),
    "Forgets": ("Forgets.forward returns None: return a tensor",),
    "GrowingBuffer": (
        "makes a tensor of [2, 16] of buffer 'seen'",
        "keeps its shape and type",
        "call the module once",
    ),
    "KeepsGraph": ("the buffer 'state' keeps the graph of the forward before", ".detach() what is stored"),
    "Detaches": ("no weight of Detaches has a gradient", "leave that out where the model trains"),
    "StepsItself": ("self.optimizer.step()", "the optimizer alone may change in a run"),
    "AutocastInside": ("computes under torch.autocast", "convert with .to(dtype)"),
    "NeedsMode": ("raise RuntimeError", "the model fails in evaluation, in eager mode, with 4 samples"),
    "TrainsAlone": ("TrainsAlone.forward returns None",),
    "no_backward": ("You must implement either the backward", "write it in operators of torch"),
    "too_few_gradients": ("in backward", "returned an incorrect number of gradients (expected 2, got 1)"),
    "wrong_gradient": ("got [2, 3] but expected shape compatible with [2, 16]",),
    "differentiated": ("a derivative within the forward", "write it out with operators of torch"),
    "vmapped": ("torch.vmap and torch.func map", "write the dimension out"),
    "nested": ("pad to one length, and give a mask as a field",),
    "sparse_inside": ("makes a sparse tensor, which runs do not know: compute with dense ones",),
    "quantized_inside": ("numbers of torch.qint8: runs do not have them; compute with torch.float32",),
    "random_generator": ("draws from a generator of its own", "leave generator= out"),
    "sampled": (
        "aten.multinomial.default draws random numbers of a kind",
        "exponential_().log()).argmax(-1)",
    ),
    "eigenvalues": ("runs do not execute the operator aten::linalg_eig", "use torch.linalg.eigh"),
    "returns_class": ("returns the class Net; expected a torch.nn.Module",),
    "returns_pair": ("returns a tuple; expected a torch.nn.Module",),
    "loads_checkpoint": ("in loads_checkpoint", "No such file or directory: 'no_such_checkpoint.pt'"),
    "missing_keys": ("in missing_keys", 'Missing key(s) in state_dict: "a.bias"'),
    "wrong_checkpoint": ("in wrong_checkpoint", "size mismatch for a.weight"),
}
NO_GRADIENT = "the loss has no gradient: it comes from .detach(), torch.no_grad, argmax or a comparison"
LOSSES = {
    "loss_none": ("in loss_none", "returns a NoneType instead of a tensor of one number"),
    "loss_tuple": ("in loss_tuple", "term 'accuracy' is a float", "give a tensor of one number"),
    "loss_pair": ("in loss_pair", "returns a tuple", "let it return the mean or the sum"),
    "loss_detached": ("in loss_detached", NO_GRADIENT),
    "loss_accuracy": ("in loss_accuracy", NO_GRADIENT),
    "loss_item": ("in loss_item", "returns a float", "let it return the mean or the sum"),
    "loss_of_attribute": ("return output.logits.mean()", "has no attribute 'logits'"),
    "loss_by_numbers": ("in loss_by_numbers", *BY_NUMBERS),
    "loss_masked": ("in loss_masked", *IN_TENSORS),
    "loss_of_classes": ("in loss_of_classes", "Target 7 is out of bounds", "--field NAME=i64[SIZES]<N"),
    "loss_string": ("is a str; expected a function of (output, batch)",),
}
# Where no line of theirs failed.
PLACELESS = {
    "ListOfLayers",
    "Forgets",
    "Detaches",
    "TrainsAlone",
    "returns_class",
    "returns_pair",
    "loss_string",
}


def place(name):
    """The user's file; the line too where it holds the mistake's name."""
    if name in PLACELESS:
        return ()
    text = Path(MISTAKES).read_text()
    of_its_own = f"\n{name} = doing(" in text and name not in ELSEWHERE
    return ("mistakes.py", *([line_of(f"{name} = doing(")] if of_its_own else ()))


ELSEWHERE = {
    "by_mask_before",
    "packed",
    "unequal_types",
    "transposed",
    "while_large",
    "elsewhere",
    "too_few_gradients",
}
REFUSED = [
    *((name, f"{MISTAKES}:{name}", NUMBERS, *place(name), *words) for name, words in MODULES.items()),
    *(
        (
            name,
            f"{MISTAKES}:Net",
            (*NUMBERS, "--field", "y=i64[]<9", "--loss", f"{MISTAKES}:{name}"),
            *place(name),
            *words,
        )
        for name, words in LOSSES.items()
    ),
]
