"""Modules with frozen weights, as PEFT makes them and by hand, and how they are trained."""

import torch
import torch.nn.functional as F
import transformers
from peft import IA3Config, LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "vocab_size": 64,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
}


class Logits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


def loss(output, batch):
    return F.cross_entropy(output.flatten(0, 1).float(), batch["labels"].flatten())


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))


def gpt2():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))


def as_after_training(model):
    """LoRA's B begins at zero, and then A's gradient is zero."""
    generator = torch.Generator().manual_seed(4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.02, generator=generator)
    return Logits(model)


def with_lora(model, **more):
    targets = ["c_attn"] if isinstance(model, transformers.GPT2LMHeadModel) else ["q_proj", "v_proj"]
    settings = {"r": 4, "lora_alpha": 8, "target_modules": targets, "task_type": "CAUSAL_LM", **more}
    return as_after_training(get_peft_model(model, LoraConfig(**settings)))


def lora():
    return with_lora(llama())


def lora_gpt2():
    return with_lora(gpt2(), fan_in_fan_out=True)


def late_lora():
    """Adapters in the last block alone."""
    return with_lora(llama(), layers_to_transform=[1])


def lora_bfloat16():
    """Frozen weights in bfloat16, adapters in float32."""
    return with_lora(llama().to(torch.bfloat16))


def dora():
    return with_lora(llama(), use_dora=True)


def ia3():
    config = IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
    )
    return Logits(get_peft_model(llama(), config))


class Prompted(nn.Module):
    """Without the logits of the prompt."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits[:, 4:]


def prompt_tuning():
    return Prompted(get_peft_model(llama(), PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")))


def bitfit():
    module = Logits(gpt2())
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return module


def half_frozen():
    module = Logits(gpt2())
    body = module.model.transformer
    module.model.lm_head.weight = nn.Parameter(module.model.lm_head.weight.detach().clone())
    for part in [body.wte, body.wpe, body.h[0]]:
        part.requires_grad_(False)
    return module


def head_only():
    module = Logits(llama())
    module.requires_grad_(False)
    module.model.lm_head.requires_grad_(True)
    return module


def full():
    return Logits(llama())
