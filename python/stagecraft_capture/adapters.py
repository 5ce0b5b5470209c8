"""What an export needs to write PEFT's adapters: their config, and which tensors they are of. Nothing here
imports peft: a module that has adapters has brought it."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from .weights import one_tensor

if TYPE_CHECKING:
    from typing import Any

    import torch

    from .aliases import Json


def peft_model_in(module: torch.nn.Module) -> tuple[str, Any] | None:
    """The first PeftModel among the module and its parts, and where it is."""
    peft = sys.modules.get("peft")
    if peft is None:
        return None
    return next(((name, m) for name, m in module.named_modules() if isinstance(m, peft.PeftModel)), None)


def saved_by_peft(model: Any) -> dict[str, torch.Tensor]:
    """What save_pretrained of the model writes, by PEFT's names."""
    peft = sys.modules["peft"]
    made: dict[str, torch.Tensor] = peft.get_peft_model_state_dict(model, adapter_name=model.active_adapter)
    return made


def tensors_of(module: torch.nn.Module, prefix: str) -> tuple[Any, dict[str, str]] | None:
    """The PeftModel of a module, and for each tensor of its adapter file the module's name of it, without
    `prefix`. None where there is none, or where a tensor of the file is none of the module's own."""
    found = peft_model_in(module)
    if found is None:
        return None
    model = found[1]
    held = {name.removeprefix(prefix): t for name, t in module.state_dict(keep_vars=True).items()}
    names: dict[str, str] = {}
    for saved, tensor in saved_by_peft(model).items():
        same = [name for name, t in held.items() if one_tensor(t.detach(), tensor.detach())]
        # Prompts are copied out of an embedding.
        same = same or [
            name
            for name, t in held.items()
            if t.requires_grad and t.shape == tensor.shape and t.detach().equal(tensor.detach())
        ]
        if not same:
            return None
        names[saved] = same[0]
    return model, names


def write(module: torch.nn.Module, prefix: str, folder: str) -> bool:
    """adapters/ in the model folder: adapter_config.json, and tensors.json, which names each tensor of
    adapter_model.safetensors. Whether there is anything to write."""
    found = tensors_of(module, prefix)
    if found is None:
        return False
    model, names = found
    made = f"{folder}/adapters"
    os.mkdir(made)
    config = model.peft_config[model.active_adapter]
    before = config.inference_mode
    config.inference_mode = True  # as save_pretrained writes it
    try:
        config.save_pretrained(made)
    finally:
        config.inference_mode = before
    about: Json = {"tensors": dict(sorted(names.items()))}
    with open(f"{made}/tensors.json", "w", encoding="utf-8") as file:
        json.dump(about, file, indent=1)
        file.write("\n")
    return True
