"""Model shapes from the ``config.json`` of HuggingFace models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
        "qkv_bias": bool(c.get("attention_bias", kind in ("qwen2", "qwen2_moe"))),
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
    }
    shape = ModelShape(name=_name(c, kind), **{**fields, **others})
    return shape, int(c.get("num_experts_per_tok") or 0) if shape.experts else 0


def _mixtral(c: Mapping[str, Any]) -> tuple[ModelShape, int]:
    return _llama(c, experts=c["num_local_experts"])


def _qwen_moe(c: Mapping[str, Any]) -> tuple[ModelShape, int]:
    shared = int(c.get("shared_expert_intermediate_size") or 0)
    return _llama(
        c,
        experts=int(c.get("num_experts") or c.get("num_local_experts") or 0),
        expert_ffn=c["moe_intermediate_size"],
        shared_ffn=shared,
        shared_gate=bool(shared),
        moe_every=int(c.get("decoder_sparse_step") or 1),
    )


def _deepseek(c: Mapping[str, Any]) -> tuple[ModelShape, int]:
    wide = c["moe_intermediate_size"]
    return _llama(
        c,
        experts=c["n_routed_experts"],
        expert_ffn=wide,
        shared_ffn=wide * int(c.get("n_shared_experts") or 0),
        moe_first=int(c.get("first_k_dense_replace") or 0),
        moe_every=int(c.get("moe_layer_freq") or 1),
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
