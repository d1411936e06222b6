"""Published models: shapes, routing and batch by name, or from a configuration file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from moetraffic import data
from moetraffic.errors import LayoutError
from moetraffic.spelling import nearest

from .model import BYTES, ModelShape, broken_rules
from .routing import Gating
from .rules import refuse
from .tensors import ParameterCount, parameter_count

# building blocks of families, as fields of a shape
GPT: Mapping[str, Any] = {"norm_bias": True, "bias": True, "experts": 0}
LLAMA: Mapping[str, Any] = {
    "positions": "rotary",
    "norm": "rms",
    "activation": "silu",
    "gated": True,
    "tied": False,
    "moe_every": 1,
}
T5: Mapping[str, Any] = {"positions": "relative", "norm": "rms", "activation": "relu"}
FAMILIES: Mapping[str, Mapping[str, Any]] = {"gpt": GPT, "llama": LLAMA, "t5": T5}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model by name."""

    model: ModelShape
    source: str  # of the shape: a paper's table or a published configuration
    gating: Gating = field(default_factory=Gating)  # of a dense model: not used
    micro_batch: int = 4  # sequences of a rank in one forward pass
    published: int = 0  # parameters that the source states; 0: it states none
    # parts that the source counts and this library does not build
    left_out: Mapping[str, int] = field(default_factory=dict)
    within: float = 0.01  # of published: above 0.01 the remark says why
    remark: str = ""  # how the published count is to be read
    note: str = ""  # what was assumed

    @property
    def name(self) -> str:
        """What ``--model`` takes."""
        return self.model.name

    @property
    def parameters(self) -> ParameterCount:
        """The count of what is built, without ``left_out``."""
        return parameter_count(self.model, k=self.gating.k)


def _read(name: str, shape: Mapping[str, Any], **rest: Any) -> Preset:
    blocks = FAMILIES.get(rest.pop("family", ""), {})
    model = ModelShape(**{**blocks, **shape, "name": name})
    return Preset(model=model, gating=Gating(**rest.pop("gating", {})), **rest)


PRESETS: Mapping[str, Preset] = {
    row["name"]: _read(**row)
    for row in json.loads(data.path("models.json").read_text("utf-8"))["models"]
}
"""The presets by name: tiny ones, mixtures of experts, dense models."""


def preset(name: str) -> Preset:
    """The preset of a name.

    Raises
    ------
    LayoutError
        If there is none.
    """
    if name not in PRESETS:
        raise LayoutError(
            f"a model is one of the presets, not {name!r}: {nearest(name, PRESETS)}see "
            "moetraffic models"
        )
    return PRESETS[name]


# ---- another size --------------------------------------------------------------------

SIZES = (
    *("layers", "hidden", "heads", "kv_heads", "head_size", "experts"),
    *("ffn", "expert_ffn", "shared_ffn"),
)
"""Fields whose choice makes a model of another size."""


def scaled(shape: ModelShape, chosen: Mapping[str, Any]) -> ModelShape:
    """A shape with the fields in ``chosen`` anew, and others in proportion.

    - With ``hidden``, every width (``ffn``, ``expert_ffn``, ``shared_ffn``) and rank of
      latent attention keeps its ratio to ``hidden``, rounded.
    - The number of ``heads`` stays; a head's sizes change so that all heads together
      keep their ratio to ``hidden``, rounded to even numbers where they are rotated.
    - With ``heads``, ``kv_heads`` keep their ratio to them: the next smaller divisor.
    - With ``layers``, the encoder's layers and the dense layers in front keep their
      share of them, one at least.
    - With ``sequence``, ``target_sequence`` keeps its ratio.
    - A model of another size reads bytes: its vocabulary is 256, an encoder's 257 (a
      mask beside them).

    What is 0 because it is derived stays 0.  The shape need not be sound: see
    :func:`~moetraffic.workload.model.broken_rules`.
    """
    m, names = shape, {f.name for f in fields(ModelShape)}
    new: dict[str, Any] = {n: v for n, v in chosen.items() if n in names}
    follow: dict[str, Any] = {}
    ratio = {
        name: new.get(name, getattr(m, name)) / getattr(m, name)
        for name in ("layers", "hidden", "heads", "sequence")
    }
    if all(new.get(name, 1) >= 1 for name in ratio):
        a_head = ratio["hidden"] / ratio["heads"]
        even = m.positions == "rotary" and not m.kv_rank
        for name, share, step in (
            *((n, ratio["hidden"], 1) for n in ("ffn", "expert_ffn", "shared_ffn")),
            *((n, ratio["hidden"], 1) for n in ("query_rank", "kv_rank")),
            *(("head_size", a_head, 1 + even), ("rope_size", a_head, 2)),
            *(("value_size", a_head, 1), ("target_sequence", ratio["sequence"], 1)),
            *((n, ratio["layers"], 1) for n in ("encoder_layers", "moe_first")),
            ("kv_heads", ratio["heads"], 1),
        ):
            size = getattr(m, name)
            follow[name] = size and max(step, step * round(size * share / step))
        if m.kv_heads:
            heads, most = new.get("heads", m.heads), follow["kv_heads"]
            follow["kv_heads"] = max(d for d in range(1, most + 1) if heads % d == 0)
        if m.two_stacks and "layers" in new:
            most = max(new["layers"] - 1, 1)
            follow["encoder_layers"] = min(follow["encoder_layers"], most)
    if any(n in new and new[n] != getattr(m, n) for n in SIZES):
        follow["vocabulary"] = BYTES + int(m.masked)
        follow["name"] = m.name.removesuffix(", scaled") + ", scaled"
    return replace(m, **{**follow, **new})


# ---- config.json of HuggingFace models -----------------------------------------------

MOST_BYTES = 1 << 20
"""Size of a configuration at most; those of published models have a few kB."""

# fields of a shape and their keys: positive, or with a "?" absent, null or 0
_GPT2_KEYS = {
    "layers": "n_layer",
    "hidden": "n_embd",
    "heads": "n_head",
    "sequence": "n_positions",
    "vocabulary": "vocab_size",
    "ffn": "n_inner?",
}
_LLAMA_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "sequence": "max_position_embeddings",
    "vocabulary": "vocab_size",
    "kv_heads": "num_key_value_heads?",
    "head_size": "head_dim?",
    "mtp": "num_nextn_predict_layers?",
}
_QWEN_MOE_KEYS = {
    **_LLAMA_KEYS,
    "experts": "num_experts",
    "expert_ffn": "moe_intermediate_size",
    "shared_ffn": "shared_expert_intermediate_size?",
    "moe_every": "decoder_sparse_step?",
}
_DEEPSEEK_KEYS = {
    **{n: key for n, key in _LLAMA_KEYS.items() if n not in ("kv_heads", "head_size")},
    "experts": "n_routed_experts",
    "expert_ffn": "moe_intermediate_size",
    "moe_every": "moe_layer_freq?",
    "head_size": "qk_nope_head_dim",
    "query_rank": "q_lora_rank?",
    "kv_rank": "kv_lora_rank",
    "rope_size": "qk_rope_head_dim",
    "value_size": "v_head_dim",
}
TYPES: Mapping[str, Mapping[str, str]] = {
    "gpt2": _GPT2_KEYS,
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA_KEYS),
    "mixtral": {**_LLAMA_KEYS, "experts": "num_local_experts"},
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), _QWEN_MOE_KEYS),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _DEEPSEEK_KEYS),
}
"""By ``model_type``, the keys of a shape's fields."""


def read_config(path: str | Path) -> tuple[ModelShape, int]:
    """Read the shape of a model from its ``config.json``, and its experts a token.

    ``path`` is the file or its folder.  The sequence length is the number of positions
    that the file states; a dense model has 0 experts a token.

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
            raise ValueError(f"larger than {MOST_BYTES:,} bytes")
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise LayoutError(
            f"a model's config.json is read as JSON, but {file} is not ({why}): give "
            "the file of a HuggingFace model"
        ) from None
    kind = str(config.get("model_type")) if isinstance(config, dict) else ""
    if kind not in TYPES:
        raise LayoutError(
            f"model_type is one of {', '.join(sorted(TYPES))}, but in {file} it is "
            f"{kind!r}: give --layers, --hidden and the other sizes instead"
        )
    sizes: dict[str, Any] = {}
    for name, key in TYPES[kind].items():
        sizes[name] = size = config.get(key.rstrip("?")) or 0
        if type(size) is not int or size < (not key.endswith("?")):
            raise LayoutError(
                f"sizes of a {kind} configuration are positive whole numbers, but "
                f"{key.rstrip('?')} of {file} is not: complete it"
            )
    try:
        shape, layers = _shape(kind, config, sizes)
        k = int(config.get("num_experts_per_tok") or 0) if shape.experts else 0
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"the sizes of {file} are numbers, but one is not ({error}): complete it"
        ) from None
    if shape.experts and shape.moe_layers != tuple(layers):
        raise LayoutError(
            "every n-th layer from a first one on has experts, but here these are the "
            f"layers {', '.join(map(str, layers)) or 'none'}: change mlp_only_layers, "
            "decoder_sparse_step or moe_layer_freq, or give --layers, --hidden and the "
            "other sizes instead"
        )
    refuse([(f"{rule} ({file})", remedy) for rule, remedy in broken_rules(shape)])
    return shape, k


def _shape(
    kind: str, config: Mapping[str, Any], sizes: dict[str, Any]
) -> tuple[ModelShape, list[int]]:
    """The shape of a configuration whose sizes are known, and its MoE layers."""
    name = str(config.get("_name_or_path") or kind)[:80]
    tied = bool(config.get("tie_word_embeddings", kind == "gpt2"))
    if kind == "gpt2":
        return ModelShape(**{**GPT, **sizes, "name": name, "tied": tied}), []
    every = sizes["moe_every"] = sizes.get("moe_every") or 1
    layers = list(range(sizes["layers"]))
    if kind.endswith("_moe"):
        sizes["shared_gate"] = bool(sizes["shared_ffn"])
        dense = config.get("mlp_only_layers") or ()
        layers = [n for n in layers[every - 1 :: every] if n not in dense]
    elif kind.startswith("deepseek"):
        sizes["shared_ffn"] = sizes["expert_ffn"] * int(
            config.get("n_shared_experts") or 0
        )
        first = int(config.get("first_k_dense_replace") or 0)
        # as DeepseekV3Model counts them, from 0
        layers = [n for n in layers[first:] if n % every == 0]
    sizes["moe_first"] = layers[0] if layers and sizes.get("experts") else 0
    # biases of queries, keys and values alone in Qwen2, of all matrices in Llama
    # (transformers, modeling_llama.py); fields that other types have not are not read
    bias = bool(config.get("attention_bias")) and kind not in ("mistral", "mixtral")
    if kind in ("qwen2", "qwen2_moe"):
        sizes["qkv_bias"], bias = bool(config.get("qkv_bias", True)), False
    elif bias != (bool(config.get("mlp_bias")) and kind == "llama"):
        raise LayoutError(
            "matrices of attention and of the feed-forward network have biases, or "
            f"neither have, but attention_bias is {bias} and mlp_bias {not bias} in a "
            f"{kind} configuration: leave both out"
        )
    more = {"name": name, "tied": tied, "bias": bias, "qk_norm": "qwen3" in kind}
    return ModelShape(**{**LLAMA, "experts": 0, **sizes, **more}), layers
