"""A Mixtral of one layer, whose loss has that of its routers in it."""

import pytest
import torch


def mixtral():
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        output_router_logits=True,
        router_aux_loss_coef=0.5,
    )
    torch.manual_seed(0)
    return transformers.MixtralForCausalLM(config)
