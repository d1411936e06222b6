"""Our layers compute what transformers' do, on equal weights."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch

from moetraffic.models import GPT, language_model
from moetraffic.patterns import Gating, ModelShape

transformers = pytest.importorskip("transformers")

SIZES = {"layers": 2, "hidden": 16, "heads": 4, "sequence": 12, "vocabulary": 50}
THEIRS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": 50,
    "max_position_embeddings": 12,
    "attn_implementation": "eager",
}
LLAMA: dict[str, Any] = {
    **SIZES,
    "ffn": 24,
    "experts": 0,
    "positions": "rotary",
    "norm": "rms",
    "activation": "silu",
    "gated": True,
    "tied": False,
    "moe_every": 1,
}
TOKENS = torch.arange(24).view(2, 12) * 7 % 50


def pair(shape: ModelShape, theirs: Any, gating: Gating | None = None) -> GPT:
    """Our model in float64, and theirs with random weights of a size that matters."""
    torch.manual_seed(0)
    for p in theirs.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return language_model(shape, gating or Gating()).double()


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    # theirs computes RMS norms and angles in float32
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def copied(ours: GPT, theirs: Any, names: dict[str, str]) -> None:
    """Copy weights by name; ``{}`` stands for a layer; all of ours are copied."""
    given = dict(theirs.state_dict())
    mine = dict(ours.named_parameters())
    left = set(mine)
    with torch.no_grad():
        for name, other in names.items():
            for layer in range(2) if "{}" in name else (0,):
                for end in ("", ".weight", ".bias"):
                    here, there = name.format(layer) + end, other.format(layer) + end
                    if here in mine:
                        value = given[there]
                        mine[here].copy_(
                            value if value.shape == mine[here].shape else value.T
                        )
                        left.discard(here)
    assert not left


ENDS = {
    "token": "model.embed_tokens",
    "norm": "model.norm",
    "unembed": "lm_head",
    "blocks.{}.norm_1": "model.layers.{}.input_layernorm",
    "blocks.{}.norm_2": "model.layers.{}.post_attention_layernorm",
    "blocks.{}.mlp.gate": "model.layers.{}.mlp.gate_proj",
    "blocks.{}.mlp.up": "model.layers.{}.mlp.up_proj",
    "blocks.{}.mlp.down": "model.layers.{}.mlp.down_proj",
}
HEADS = {
    f"blocks.{{}}.attention.{ours}": f"model.layers.{{}}.self_attn.{theirs}"
    for ours, theirs in {
        "q": "q_proj",
        "k": "k_proj",
        "v": "v_proj",
        "out": "o_proj",
        "q_norm": "q_norm",
        "k_norm": "k_norm",
    }.items()
}


def test_grouped_rotary_attention_is_llamas() -> None:
    config = transformers.LlamaConfig(**THEIRS, num_key_value_heads=2)
    theirs = transformers.LlamaForCausalLM(config).double().eval()
    ours = pair(ModelShape(**LLAMA, kv_heads=2), theirs)
    copied(ours, theirs, {**ENDS, **HEADS})
    same(ours.logits(TOKENS)[0], theirs(TOKENS).logits)


def test_normed_heads_are_qwen3s() -> None:
    config = transformers.Qwen3Config(**THEIRS, num_key_value_heads=2, head_dim=6)
    theirs = transformers.Qwen3ForCausalLM(config).double().eval()
    ours = pair(ModelShape(**LLAMA, kv_heads=2, head_size=6, qk_norm=True), theirs)
    copied(ours, theirs, {**ENDS, **HEADS})
    same(ours.logits(TOKENS)[0], theirs(TOKENS).logits)


@pytest.mark.parametrize("query_rank", [0, 10])
def test_latent_attention_is_deepseeks(query_rank: int) -> None:
    config = transformers.DeepseekV3Config(
        **THEIRS,
        num_key_value_heads=4,
        q_lora_rank=query_rank or None,
        kv_lora_rank=8,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        first_k_dense_replace=2,
        rope_interleave=False,
    )
    theirs = transformers.DeepseekV3ForCausalLM(config).double().eval()
    latent = {"query_rank": query_rank, "kv_rank": 8, "rope_size": 4}
    ours = pair(ModelShape(**LLAMA, **latent, head_size=6, value_size=5), theirs)
    names = {
        "q_down": "q_a_proj",
        "q_norm": "q_a_layernorm",
        "q": "q_b_proj" if query_rank else "q_proj",
        "kv_down": "kv_a_proj_with_mqa",
        "kv_norm": "kv_a_layernorm",
        "kv": "kv_b_proj",
        "out": "o_proj",
    }
    heads = {
        f"blocks.{{}}.attention.{a}": f"model.layers.{{}}.self_attn.{b}"
        for a, b in names.items()
    }
    copied(ours, theirs, {**ENDS, **heads})
    same(ours.logits(TOKENS)[0], theirs(TOKENS).logits)


def test_shared_and_routed_experts_are_qwen2_moes() -> None:
    config = transformers.Qwen2MoeConfig(
        **THEIRS,
        num_key_value_heads=4,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=10,
        shared_expert_intermediate_size=14,
        norm_topk_prob=True,
        experts_implementation="eager",
    )
    theirs = transformers.Qwen2MoeForCausalLM(config).double().eval()
    moe = {"experts": 6, "expert_ffn": 10, "shared_ffn": 14, "shared_gate": True}
    ours = pair(ModelShape(**{**LLAMA, **moe}, qkv_bias=True), theirs, Gating(k=2))
    beside = {
        "blocks.{}.mlp.router": "model.layers.{}.mlp.gate",
        "blocks.{}.shared.gate": "model.layers.{}.mlp.shared_expert.gate_proj",
        "blocks.{}.shared.up": "model.layers.{}.mlp.shared_expert.up_proj",
        "blocks.{}.shared.down": "model.layers.{}.mlp.shared_expert.down_proj",
        "blocks.{}.shared_gate": "model.layers.{}.mlp.shared_expert_gate",
    }
    given = theirs.state_dict()
    with torch.no_grad():
        for layer, mixture in enumerate(ours.mixtures):
            place, mine = f"model.layers.{layer}.mlp.experts.", mixture.experts
            gate, up = given[place + "gate_up_proj"].chunk(2, 1)
            mine.gate.copy_(gate.transpose(1, 2))
            mine.up.copy_(up.transpose(1, 2))
            mine.down.copy_(given[place + "down_proj"].transpose(1, 2))
            for part in ("gate", "up", "down"):  # copied() wants a name for each
                given[f"experts.{layer}.{part}"] = getattr(mine, part).clone()
    theirs.state_dict = lambda: given
    experts = {
        f"blocks.{{}}.mlp.experts.{p}": f"experts.{{}}.{p}"
        for p in ("gate", "up", "down")
    }
    copied(ours, theirs, {**ENDS, **HEADS, **beside, **experts})
    same(ours.logits(TOKENS)[0], theirs(TOKENS).logits)


def split_qkv(given: dict[str, Any], place: str) -> None:
    """GPT-2 keeps one matrix of queries, keys and values, inputs first."""
    for end in ("weight", "bias"):
        parts = given[f"{place}.c_attn.{end}"].chunk(3, -1)
        for name, part in zip("qkv", parts, strict=True):
            given[f"{place}.{name}.{end}"] = part.T if end == "weight" else part


def test_the_dense_decoder_is_gpt2() -> None:
    config = transformers.GPT2Config(
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_positions=12,
        n_inner=24,
        vocab_size=50,
        activation_function="gelu",
    )
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    shape = ModelShape(**SIZES, ffn=24, experts=0, norm_bias=True, bias=True)
    ours = pair(shape, theirs)
    given = theirs.state_dict()
    for layer in range(2):
        place = f"transformer.h.{layer}"
        split_qkv(given, f"{place}.attn")
        for name in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            given[f"{place}.{name}.weight"] = given[f"{place}.{name}.weight"].T
    theirs.state_dict = lambda: given
    names = {
        "token": "transformer.wte",
        "position": "transformer.wpe",
        "norm": "transformer.ln_f",
    }
    inner = {
        "norm_1": "ln_1",
        "norm_2": "ln_2",
        "attention.q": "attn.q",
        "attention.k": "attn.k",
        "attention.v": "attn.v",
        "attention.out": "attn.c_proj",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    }
    for a, b in inner.items():
        names[f"blocks.{{}}.{a}"] = f"transformer.h.{{}}.{b}"
    copied(ours, theirs, names)
    same(ours.logits(TOKENS)[0], theirs(TOKENS).logits)


def test_the_encoder_is_bert() -> None:
    config = transformers.BertConfig(**THEIRS, layer_norm_eps=1e-5)
    theirs = transformers.BertForMaskedLM(config).double().eval()
    shape = ModelShape(
        **SIZES,
        encoder_layers=2,
        ffn=24,
        experts=0,
        norm_bias=True,
        bias=True,
        segments=2,
        norm_place="post",
    )
    ours = pair(shape, theirs)
    names = {
        "token": "bert.embeddings.word_embeddings",
        "position": "bert.embeddings.position_embeddings",
        "segment": "bert.embeddings.token_type_embeddings",
        "norm_embedding": "bert.embeddings.LayerNorm",
        "transform": "cls.predictions.transform.dense",
        "norm_transform": "cls.predictions.transform.LayerNorm",
        "unembed_bias": "cls.predictions.bias",
    }
    inner = {
        "attention.q": "attention.self.query",
        "attention.k": "attention.self.key",
        "attention.v": "attention.self.value",
        "attention.out": "attention.output.dense",
        "norm_1": "attention.output.LayerNorm",
        "mlp.up": "intermediate.dense",
        "mlp.down": "output.dense",
        "norm_2": "output.LayerNorm",
    }
    for a, b in inner.items():
        names[f"blocks.{{}}.{a}"] = f"bert.encoder.layer.{{}}.{b}"
    copied(ours, theirs, names)
    same(ours.logits(TOKENS)[0], theirs(TOKENS).logits)


def test_the_two_stacks_are_t5() -> None:
    config = transformers.T5Config(
        d_model=16,
        d_kv=6,
        d_ff=24,
        num_layers=1,
        num_decoder_layers=1,
        num_heads=4,
        vocab_size=50,
    )
    theirs = transformers.T5ForConditionalGeneration(config).double().eval()
    shape = ModelShape(
        **SIZES,
        encoder_layers=1,
        target_sequence=8,
        head_size=6,
        ffn=24,
        experts=0,
        positions="relative",
        norm="rms",
        activation="relu",
    )
    ours = pair(shape, theirs)
    given = theirs.state_dict()
    for name in list(given):
        if name.endswith("Attention.q.weight"):
            given[name] = given[name] * sqrt(6)  # T5 does not scale scores
    theirs.state_dict = lambda: given
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias"
    names = {
        "token": "shared",
        "norm_encoder": "encoder.final_layer_norm",
        "norm": "decoder.final_layer_norm",
        "relative_encoder.table": f"encoder.{bias}",
        "relative.table": f"decoder.{bias}",
        "blocks.1.norm_cross": "decoder.block.0.layer.1.layer_norm",
    }
    for stack, block, last in (("encoder", 0, 1), ("decoder", 1, 2)):
        place = f"{stack}.block.0.layer."
        names[f"blocks.{block}.norm_1"] = place + "0.layer_norm"
        names[f"blocks.{block}.norm_2"] = f"{place}{last}.layer_norm"
        names[f"blocks.{block}.mlp.up"] = f"{place}{last}.DenseReluDense.wi"
        names[f"blocks.{block}.mlp.down"] = f"{place}{last}.DenseReluDense.wo"
        for a, b in {"q": "q", "k": "k", "v": "v", "out": "o"}.items():
            names[f"blocks.{block}.attention.{a}"] = f"{place}0.SelfAttention.{b}"
            if block:
                names[f"blocks.1.cross.{a}"] = f"{place}1.EncDecAttention.{b}"
    copied(ours, theirs, names)
    both = torch.arange(40).view(2, 20) * 7 % 50
    told = theirs(input_ids=both[:, :12], decoder_input_ids=both[:, 12:]).logits
    # T5 divides what meets a tied embedding by sqrt(h); ours begins small instead
    same(ours.logits(both)[0], told * sqrt(16))
