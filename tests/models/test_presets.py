"""Every preset is built as it is counted, and trains when it is small."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from moetraffic.models import GPT, Corpus, language_model, train
from moetraffic.models.corpus import text
from moetraffic.patterns import (
    PRESETS,
    ROUTERS,
    Gating,
    ModelShape,
    ParameterCount,
    Preset,
    Training,
    Workload,
    parameter_count,
    preset,
    scaled,
)

every = pytest.mark.parametrize("found", PRESETS.values(), ids=PRESETS)
SOME = ("gpt2-large", "mixtral-8x7b", "deepseek-v3")


def some(*names: str) -> list[Any]:
    """Return names of presets, of which only a few are trained always."""
    slow = pytest.mark.slow
    return [pytest.param(n, marks=() if n in SOME else slow) for n in names]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return text(ModelShape(), Training())


def routed(found: Preset) -> Gating:
    """Its routing; a gate is a gate where its router is another package's."""
    gating = found.gating
    return gating if gating.router in ROUTERS else Gating(k=gating.k)


def built(model: GPT) -> ParameterCount:
    """The parameters that there are, by the name of their part."""
    parts = dict.fromkeys(ParameterCount.__annotations__, 0)
    del parts["active"]
    for name, p in model.named_parameters():
        steps = name.split(".")
        if any(step.startswith("norm") or step.endswith("_norm") for step in steps):
            part = "norms"
        elif steps[0] in ("token", "position", "segment"):
            part = "embedding"
        elif steps[0] in ("unembed", "unembed_bias", "transform"):
            part = "head"
        elif steps[0].startswith("relative") or {"attention", "cross"} & set(steps):
            part = "attention"
        elif "experts" in steps or "router" in steps:
            part = steps[3]
        else:
            part = "shared" if steps[2].startswith("shared") else "ffn"
        parts[part] += p.numel()
    return ParameterCount(**parts, active=0)


@every
def test_what_is_built_is_what_is_counted(found: Preset) -> None:
    with torch.device("meta"):
        model = language_model(found.model, routed(found))
    there, counted = built(model), found.parameters
    assert vars(there) == {**vars(counted), "active": 0}
    assert there.total == sum(p.numel() for p in model.parameters())


ODD: dict[str, dict[str, Any]] = {
    "biases and post-norm": {"bias": True, "norm_bias": True, "norm_place": "post"},
    "gated with biases": {"bias": True, "gated": True, "shared_ffn": 7},
    "two stacks, sinusoids, post-norm": {
        "encoder_layers": 1,
        "positions": "sinusoidal",
        "norm_place": "post",
        "target_sequence": 3,
        "moe_every": 1,
    },
    "an encoder with experts, pre-norm": {"encoder_layers": 4, "tied": False},
    "rotary, few heads": {
        "positions": "rotary",
        "kv_heads": 1,
        "head_size": 6,
        "qk_norm": True,
        "qkv_bias": True,
        "norm": "rms",
    },
    "latent, tied": {
        "positions": "rotary",
        "kv_rank": 5,
        "rope_size": 2,
        "shared_ffn": 9,
        "shared_gate": True,
    },
}


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
def test_mixed_building_blocks_are_counted_and_train(
    fields: dict[str, Any], corpus: Corpus
) -> None:
    sizes = {"hidden": 16, "heads": 2, "sequence": 12, "vocabulary": 260}
    shape = ModelShape(**sizes, experts=3, **fields)
    with torch.device("meta"):
        model = language_model(shape, Gating())
    assert vars(built(model)) == {**vars(parameter_count(shape)), "active": 0}
    plan = Training(iterations=2, micro_batch=2, warmup=1)
    losses = train(Workload(model=shape, training=plan), corpus=corpus)
    assert losses[0] == pytest.approx(math.log(260), abs=0.5)
    assert math.isfinite(losses[1])


def small(found: Preset, **sizes: int) -> ModelShape:
    chosen = {"layers": 4, "hidden": 32, "heads": 4, "sequence": 32, **sizes}
    if found.model.experts:
        chosen["experts"] = 16
    return scaled(found.model, chosen)


@pytest.mark.parametrize("name", some(*PRESETS))
def test_every_preset_trains_when_scaled(name: str, corpus: Corpus) -> None:
    found = preset(name)
    shape = small(found)
    plan = Training(iterations=4, micro_batch=2, warmup=1, learning_rate=0.01)
    work = Workload(model=shape, gating=routed(found), training=plan)
    losses = train(work, corpus=corpus)
    assert losses[0] == pytest.approx(math.log(256), abs=0.5)
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["deepseek-v3", "qwen1.5-moe-a2.7b", "switch-base-8", "bert-large"]
)
def test_a_family_learns(name: str, corpus: Corpus) -> None:
    found = preset(name)
    plan = Training(iterations=25, micro_batch=4, warmup=5, learning_rate=0.01)
    work = Workload(model=small(found), gating=routed(found), training=plan)
    losses = train(work, corpus=corpus)
    assert sum(losses[-3:]) / 3 < 4.1


@pytest.mark.parametrize("name", some("tiny", "mixtral-8x7b", "switch-base-8"))
def test_bfloat16_products_train_float32_parameters(name: str, corpus: Corpus) -> None:
    found = preset(name)
    plan = Training(
        iterations=8,
        micro_batch=2,
        warmup=2,
        learning_rate=0.01,
        precision="bfloat16",
        recompute=True,
    )
    work = Workload(model=small(found), gating=routed(found), training=plan)
    losses = train(work, corpus=corpus)
    exact = Training(**{**vars(plan), "precision": ""})
    near = train(Workload(model=work.model, gating=work.gating, training=exact))
    assert losses != near
    assert losses == pytest.approx(near, rel=0.02)
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize(
    "name", some("gpt2-large", "deepseek-v2-lite", "switch-base-8", "bert-large")
)
def test_recomputing_changes_no_bit(name: str, corpus: Corpus) -> None:
    found = preset(name)
    losses = []
    for recompute in (False, True):
        plan = Training(iterations=3, micro_batch=2, warmup=1, recompute=recompute)
        work = Workload(model=small(found), gating=routed(found), training=plan)
        losses.append(train(work, corpus=corpus))
    assert losses[0] == losses[1]
