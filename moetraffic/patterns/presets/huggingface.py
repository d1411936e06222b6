"""Model shapes from the ``config.json`` of HuggingFace models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moetraffic.errors import LayoutError
from moetraffic.patterns.shape import ModelShape, broken_rules

from .catalog import GPT, LLAMA

MOST_BYTES = 1 << 20
"""Size of a configuration at most; those of published models have a few kB."""


@dataclass(frozen=True, kw_only=True)
class Read:
    """A model that a configuration describes."""

    shape: ModelShape
    k: int  # experts of a token; 0: dense


def read_config(path: str | Path) -> Read:
    """Read the shape of a model from its ``config.json``.

    Parameters
    ----------
    path
        File, or the folder that holds it.

    Returns
    -------
    Read
        Sequence length is the number of positions that the file states.

    Raises
    ------
    LayoutError
        If there is no such file, it is no configuration, or of a type that is not one
        of :data:`TYPES`.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        if file.stat().st_size > MOST_BYTES:
            raise LayoutError(
                f"a model's config.json has at most {MOST_BYTES:,} bytes, but {file} "
                "is larger: give the config.json"
            )
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise LayoutError(
            f"a model's config.json is read as JSON, but {file} is not ({why}): give "
            "the file of a HuggingFace model"
        ) from None
    kind = str(told.get("model_type")) if isinstance(told, dict) else ""
    if kind not in TYPES:
        raise LayoutError(
            f"model_type is one of {', '.join(sorted(TYPES))}, but in {file} it is "
            f"{kind!r}: give --layers, --hidden and the other sizes instead"
        )
    needed = _NEEDED["gpt2" if kind == "gpt2" else ""]
    missing = [name for name in needed if not _count(told.get(name))]
    if missing:
        raise LayoutError(
            f"a {kind} configuration has {', '.join(needed)} as positive numbers, but "
            f"{', '.join(missing)} of {file} is not: complete it"
        )
    try:
        shape, k = TYPES[kind](told)
    except (TypeError, ValueError, KeyError) as error:
        raise LayoutError(
            f"the sizes of {file} are numbers, but one is missing or is not ({error}): "
            "complete it"
        ) from None
    for rule, remedy in broken_rules(shape):
        raise LayoutError(f"{rule} ({file}): {remedy.replace('give --', 'correct ')}")
    return Read(shape=shape, k=k)


_NEEDED = {
    "gpt2": ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size"),
    "": (
        *("num_hidden_layers", "hidden_size", "num_attention_heads"),
        *("intermediate_size", "max_position_embeddings", "vocab_size"),
    ),
}


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _gpt2(c: Mapping[str, Any]) -> tuple[ModelShape, int]:
    shape = ModelShape(
        name=_name(c, "gpt2"),
        layers=c["n_layer"],
        hidden=c["n_embd"],
        heads=c["n_head"],
        ffn=int(c.get("n_inner") or 0),
        sequence=c["n_positions"],
        vocabulary=c["vocab_size"],
        tied=bool(c.get("tie_word_embeddings", True)),
        **GPT,
    )
    return shape, 0


def _llama(c: Mapping[str, Any], **others: Any) -> tuple[ModelShape, int]:
    """Llama and what is built like it; ``others`` are the fields of experts."""
    kind = c["model_type"]
    fields: dict[str, Any] = {
        **LLAMA,
        "experts": 0,
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "heads": c["num_attention_heads"],
        "kv_heads": int(c.get("num_key_value_heads") or 0),
        "head_size": int(c.get("head_dim") or 0),
        "ffn": c["intermediate_size"],
        "sequence": c["max_position_embeddings"],
        "vocabulary": c["vocab_size"],
        "tied": bool(c.get("tie_word_embeddings", False)),
        "mtp": int(c.get("num_nextn_predict_layers") or 0),
        **_biases(c),
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
    }
    shape = ModelShape(name=_name(c, kind), **{**fields, **others})
    return shape, int(c.get("num_experts_per_tok") or 0) if shape.experts else 0


def _biases(c: Mapping[str, Any]) -> dict[str, bool]:
    """Biases of matrices: of queries, keys and values alone in Qwen2, of all in Llama
    (transformers, ``modeling_llama.py``); fields that other types have not are not
    read."""
    kind = c["model_type"]
    if kind in ("qwen2", "qwen2_moe"):
        return {"qkv_bias": bool(c.get("qkv_bias", True))}
    attention = bool(c.get("attention_bias")) and kind not in ("mistral", "mixtral")
    rest = bool(c.get("mlp_bias")) and kind == "llama"
    if attention != rest:
        raise LayoutError(
            "matrices of attention and of the feed-forward network have biases, or "
            f"neither have, but attention_bias is {attention} and mlp_bias {rest} in a "
            f"{kind} configuration: leave both out"
        )
    return {"bias": attention}


def _with_experts(
    c: Mapping[str, Any], layers: Sequence[int], **others: Any
) -> tuple[ModelShape, int]:
    """A model whose ``layers`` have experts: every n-th from one of them on.

    Raises
    ------
    LayoutError
        If others have them.
    """
    shape, k = _llama(c, moe_first=layers[0] if layers else 0, **others)
    if shape.experts and shape.moe_layers != tuple(layers):
        raise LayoutError(
            "every n-th layer from a first one on has experts, but here these are the "
            f"layers {', '.join(map(str, layers)) or 'none'}: change mlp_only_layers, "
            "decoder_sparse_step or moe_layer_freq, or give --layers, --hidden and the "
            "other sizes instead"
        )
    return shape, k


def _mixtral(c: Mapping[str, Any]) -> tuple[ModelShape, int]:
    return _llama(c, experts=c["num_local_experts"])


def _qwen_moe(c: Mapping[str, Any]) -> tuple[ModelShape, int]:
    shared = int(c.get("shared_expert_intermediate_size") or 0)
    every = int(c.get("decoder_sparse_step") or 1)
    dense = c.get("mlp_only_layers") or ()
    every_nth = range(every - 1, c["num_hidden_layers"], every)
    return _with_experts(
        c,
        [layer for layer in every_nth if layer not in dense],
        experts=int(c.get("num_experts") or c.get("num_local_experts") or 0),
        expert_ffn=c["moe_intermediate_size"],
        shared_ffn=shared,
        shared_gate=bool(shared),
        moe_every=every,
    )


def _deepseek(c: Mapping[str, Any]) -> tuple[ModelShape, int]:
    wide = c["moe_intermediate_size"]
    first, every = (
        int(c.get(name) or default)
        for name, default in (("first_k_dense_replace", 0), ("moe_layer_freq", 1))
    )
    # as DeepseekV3Model counts them, from 0
    layers = [n for n in range(first, c["num_hidden_layers"]) if n % every == 0]
    return _with_experts(
        c,
        layers,
        experts=c["n_routed_experts"],
        expert_ffn=wide,
        shared_ffn=wide * int(c.get("n_shared_experts") or 0),
        moe_every=every,
        kv_heads=0,
        head_size=c["qk_nope_head_dim"],
        query_rank=int(c.get("q_lora_rank") or 0),
        kv_rank=c["kv_lora_rank"],
        rope_size=c["qk_rope_head_dim"],
        value_size=c["v_head_dim"],
    )


def _name(c: Mapping[str, Any], kind: str) -> str:
    return str(c.get("_name_or_path") or kind)[:80]


TYPES: Mapping[str, Callable[[Mapping[str, Any]], tuple[ModelShape, int]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
"""Readers by ``model_type``."""
