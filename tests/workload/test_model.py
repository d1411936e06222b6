from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import LayoutError
from moetraffic.patterns import (
    PRESETS,
    Gating,
    Layout,
    ModelShape,
    Training,
    Workload,
    parameter_count,
    preset,
    scaled,
)
from moetraffic.workload.model import broken_rules

LATENT = {"kv_rank": 8, "rope_size": 4, "positions": "rotary"}
TWO = {"encoder_layers": 2, "positions": "relative"}


def test_which_layers_carry_experts() -> None:
    assert ModelShape().moe_layers == (1, 3)
    assert ModelShape(moe_every=1).moe_layers == (0, 1, 2, 3)
    assert ModelShape(moe_every=1, moe_first=3).moe_layers == (3,)
    assert ModelShape(layers=6, moe_first=2).moe_layers == (3, 5)
    assert ModelShape(experts=0).moe_layers == ()
    # a decoder counts from its own first layer
    assert ModelShape(layers=6, encoder_layers=3).moe_layers == (1, 4)
    assert ModelShape(layers=5, encoder_layers=5).moe_layers == (1, 3)


def test_what_is_derived() -> None:
    shape = ModelShape()
    assert (shape.groups, shape.head_width, shape.ffn_width) == (4, 32, 512)
    assert (shape.expert_width, shape.widths) == (512, (512,))
    assert (shape.window, shape.targets, shape.masked) == (128, 128, False)
    wide = ModelShape(ffn=64, expert_ffn=16, shared_ffn=48, kv_heads=2, head_size=9)
    assert wide.widths == (16, 48, 64)
    assert (wide.groups, wide.head_width, wide.value_width) == (2, 9, 9)
    assert ModelShape(ffn=64, expert_ffn=16, moe_every=1).widths == (16,)
    both = ModelShape(encoder_layers=2, sequence=30, target_sequence=7)
    assert (both.two_stacks, both.targets, both.window) == (True, 7, 37)
    assert ModelShape(encoder_layers=4).masked


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layers": 0}, "layers must be at least 1, but is 0: give --layers"),
        ({"experts": -1}, "experts must be at least 0, but is -1"),
        ({"kv_heads": -2}, "kv-heads must be at least 0, but is -2: give --kv-heads"),
        ({"vocabulary": 1}, "vocabulary must be at least 2"),
        ({"norm": "batch"}, "norm is one of layer, rms, not 'batch'"),
        ({"positions": "none"}, "positions is one of learned"),
        ({"heads": 3}, "heads must divide hidden, but 3 does not divide 128"),
        ({"kv_heads": 3}, "kv-heads must divide heads, but 3 does not divide 4"),
        ({"encoder_layers": 5}, "but encoder-layers is 5 and layers is 4"),
        ({"moe_every": 5}, "layers 4, .* moe-every 5 none does: lower"),
        ({"moe_first": 4}, "moe-first 4 and moe-every 2 none does"),
        ({**TWO, "moe_every": 3}, "encoder-layers 2, moe-first 0 and moe-every 3"),
        ({"positions": "rotary", "head_size": 5}, "the rotated part of a head has 5"),
        ({"positions": "relative"}, "relative in encoder-decoders alone"),
        ({"encoder_layers": 2}, "are learned with 2 encoder layers of 4"),
        ({**LATENT, "positions": "learned"}, "latent attention is a decoder's"),
        ({**LATENT, "rope_size": 0}, "rope-size is 0"),
        ({**LATENT, "rope_size": 3}, "the rotated part of a head has 3"),
        ({**LATENT, "kv_heads": 2}, "as many keys as queries"),
        ({"query_rank": 8}, "query-rank is 8 and kv-rank is 0"),
    ],
)
def test_an_unsound_shape_is_refused_in_one_sentence(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(LayoutError, match=said) as refused:
        Workload(model=ModelShape(**fields))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "tp", "pp", "said"),
    [
        ({"kv_heads": 2}, 4, 1, "key and value heads, but there are 2 for tp 4"),
        ({"ffn": 6}, 4, 1, "there are 6 for tp 4"),
        (LATENT, 2, 1, "parameters that all heads share"),
        ({"qk_norm": True}, 2, 1, "parameters that all heads share"),
        (TWO, 1, 2, "the model has 2 encoder layers and pp is 2"),
        ({"encoder_layers": 4}, 1, 2, "4 encoder layers"),
    ],
)
def test_what_parallelism_cannot_split(
    fields: dict[str, Any], tp: int, pp: int, said: str
) -> None:
    shape, training = ModelShape(**fields), Training(accumulation=4)
    assert broken_rules(shape) == []
    Workload(model=shape, training=training)
    with pytest.raises(LayoutError, match=said):
        Workload(model=shape, training=training, layout=Layout(tp=tp, pp=pp))


def test_a_dense_workload_has_no_expert_parallelism() -> None:
    dense = ModelShape(experts=0)
    assert Workload(model=dense, gating=Gating(k=2)).model.moe_layers == ()
    with pytest.raises(LayoutError, match="dense model has no experts to spread"):
        Workload(model=dense, layout=Layout(dp=2, ep=2))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_precision_stands_beside_float32(dtype: str) -> None:
    Workload(training=Training(precision="bfloat16"))
    with pytest.raises(LayoutError, match="precision is 'bfloat16' and dtype is"):
        Workload(training=Training(precision="bfloat16", dtype=dtype))
    with pytest.raises(LayoutError, match="precision is 'int8'"):
        Workload(training=Training(precision="int8"))


def test_what_is_not_chosen_follows_in_proportion() -> None:
    v3 = scaled(preset("deepseek-v3").model, {"hidden": 448, "layers": 6, "heads": 16})
    assert (v3.ffn, v3.expert_ffn, v3.shared_ffn) == (1152, 128, 128)
    assert (v3.query_rank, v3.kv_rank) == (96, 32)
    assert (v3.head_size, v3.rope_size, v3.value_size) == (64, 32, 64)
    assert (v3.moe_first, v3.experts) == (1, 256)
    assert (v3.vocabulary, v3.name) == (256, "deepseek-v3, scaled")

    mixtral = scaled(preset("mixtral-8x7b").model, {"hidden": 128})
    assert (mixtral.heads, mixtral.kv_heads, mixtral.head_size) == (32, 8, 4)
    assert mixtral.ffn == 448
    qwen = scaled(preset("qwen3-30b-a3b").model, {"hidden": 128, "heads": 4})
    assert (qwen.kv_heads, qwen.head_size) == (1, 64)  # 2 hidden, as published
    assert scaled(preset("mixtral-8x7b").model, {"heads": 12}).kv_heads == 3

    t5 = scaled(preset("t5-large").model, {"layers": 4, "sequence": 128})
    assert (t5.encoder_layers, t5.target_sequence) == (2, 28)
    bert = scaled(preset("bert-large").model, {"layers": 3, "hidden": 64})
    assert (bert.encoder_layers, bert.vocabulary) == (3, 257)
    assert bert.masked


def test_what_is_chosen_stays() -> None:
    base = preset("mixtral-8x7b").model
    chosen = {"hidden": 64, "ffn": 100, "kv_heads": 4, "head_size": 10}
    assert scaled(base, chosen) == replace(
        base, **chosen, vocabulary=256, name="mixtral-8x7b, scaled"
    )
    assert scaled(base, {}) == base
    # a sequence makes no model of another size
    assert scaled(base, {"sequence": 64, "hidden": 4096}) == replace(base, sequence=64)
    assert scaled(base, {"vocabulary": 999, "layers": 2}).vocabulary == 999
    tiny = ModelShape()
    assert scaled(tiny, {"hidden": 64}).head_width == 16


@given(
    name=st.sampled_from(sorted(PRESETS)),
    heads=st.sampled_from([1, 2, 3, 4, 6, 8]),
    width=st.integers(1, 24),
    layers=st.integers(4, 9),
    experts=st.integers(1, 20),
)
def test_every_preset_stays_sound(
    name: str, heads: int, width: int, layers: int, experts: int
) -> None:
    hidden = 2 * heads * width  # what is rotated is even
    chosen = {"hidden": hidden, "heads": heads, "layers": layers, "experts": experts}
    shape = scaled(preset(name).model, chosen)
    assert broken_rules(shape) == []
    assert len(shape.moe_layers) > 0
    assert parameter_count(shape).total > 0


@pytest.mark.parametrize("field", ["hidden", "heads", "layers", "sequence"])
def test_a_size_of_zero_is_refused_not_divided_by(field: str) -> None:
    for found in PRESETS.values():
        rules = broken_rules(scaled(found.model, {field: 0}))
        assert f"{field} must be at least 1, but is 0" in [rule for rule, _ in rules]
