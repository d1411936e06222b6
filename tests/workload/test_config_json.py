"""Configuration files of published models: their parameters are the published count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import preset
from moetraffic.workload.presets import read_config
from moetraffic.workload.tensors import parameter_count

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3-8b": LLAMA,
    "gpt2-large": {
        "model_type": "gpt2",
        "n_layer": 36,
        "n_embd": 1280,
        "n_head": 20,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "mixtral-8x7b": {
        **LLAMA,
        "model_type": "mixtral",
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3-30b-a3b": {
        **LLAMA,
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
    },
    "deepseek-v2-lite": {
        **LLAMA,
        "model_type": "deepseek_v2",
        "num_hidden_layers": 27,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "q_lora_rank": None,
        "vocab_size": 102400,
    },
}


def write(folder: Path, told: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(told))
    return path


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_of_a_configuration_are_those_of_the_model(
    tmp_path: Path, name: str
) -> None:
    known = preset(name)
    shape, k = read_config(write(tmp_path, CONFIGS[name]))
    count = parameter_count(shape, k=max(k, 1)).total
    assert count == parameter_count(known.model, k=known.gating.k).total
    assert abs(count / known.published - 1) < 1e-3
    assert k == (known.gating.k if known.model.experts else 0)
    assert read_config(tmp_path) == (shape, k)  # the folder will do


QWEN, DEEPSEEK = CONFIGS["qwen3-30b-a3b"], CONFIGS["deepseek-v2-lite"]
QWEN_EXPERTS, QWEN_FFN = 128 * (3 * 768 + 1) * 2048, 3 * 6144 * 2048
LITE_LAYER = (  # attention, norms, router, experts and shared ones
    2048 * (16 * 192 + 576 + 16 * 128)
    + 512 * (16 * 256 + 1)
    + 2 * 2048
    + 64 * 2048
    + 66 * 3 * 1408 * 2048
)


@pytest.mark.parametrize(
    ("plain", "more", "parameters"),
    [
        (QWEN, {"mlp_only_layers": [0, 1, 2]}, 3 * (QWEN_FFN - QWEN_EXPERTS)),
        (QWEN, {"decoder_sparse_step": 2}, 24 * (QWEN_FFN - QWEN_EXPERTS)),
        (
            QWEN,
            {"decoder_sparse_step": 2, "mlp_only_layers": [0, 1, 4]},
            25 * (QWEN_FFN - QWEN_EXPERTS),
        ),
        (
            LLAMA,
            {"attention_bias": True, "mlp_bias": True},
            32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096),
        ),
        (
            DEEPSEEK,  # embedding and head are shared; a matrix of 2 h x h, three norms
            {"num_nextn_predict_layers": 1},
            LITE_LAYER + 2 * 2048 * 2048 + 3 * 2048,
        ),
    ],
)
def test_fields_that_change_the_size_are_read(
    tmp_path: Path, plain: dict[str, Any], more: dict[str, Any], parameters: int
) -> None:
    """By hand, of what is more than without them."""
    counts = []
    for told in (plain, {**plain, **more}):
        shape, k = read_config(write(tmp_path, told))
        counts.append(parameter_count(shape, k=max(k, 1)).total)
    assert counts[1] - counts[0] == parameters


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({**LLAMA, "model_type": "mamba"}, "model_type is one of"),
        ({**LLAMA, "hidden_size": "wide"}, "hidden_size"),
        ({**LLAMA, "hidden_size": -4}, "hidden_size"),
        ({**LLAMA, "num_attention_heads": 33}, "heads must divide hidden"),
        ({**LLAMA, "model_type": "qwen3_moe"}, "num_experts"),
        ([1, 2], "model_type is one of"),
        ({**QWEN, "mlp_only_layers": [1, 5]}, "every n-th layer"),
        ({**QWEN, "mlp_only_layers": 3}, "are numbers"),
        ({**DEEPSEEK, "moe_layer_freq": 2}, "every n-th layer"),
        ({**LLAMA, "attention_bias": True}, "or neither have"),
        ({**QWEN, "attention_bias": True}, "or neither have"),
    ],
)
def test_what_is_no_configuration_is_refused(
    tmp_path: Path, told: object, words: str
) -> None:
    with pytest.raises(LayoutError, match=words):
        read_config(write(tmp_path, told))


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(LayoutError, match="is read as JSON"):
        read_config(path)
    path.write_bytes(b"\x89HDF")
    with pytest.raises(LayoutError, match="is read as JSON"):
        read_config(path)
    path.write_text(" " * (2 << 20))
    with pytest.raises(LayoutError, match="larger than"):
        read_config(path)
