from __future__ import annotations

import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import PRESETS, ModelShape, Preset, parameter_count, preset
from moetraffic.workload.model import broken_rules

every = pytest.mark.parametrize("found", PRESETS.values(), ids=PRESETS)


@every
def test_a_preset_is_sound_and_says_where_it_is_from(found: Preset) -> None:
    assert broken_rules(found.model) == []
    assert found.source
    assert 1 <= found.gating.k <= max(found.model.experts, 2)


@every
def test_its_size_is_the_published_one(found: Preset) -> None:
    if not found.published:
        assert found.source.startswith("this library")
        return
    counted = found.parameters.total + sum(found.left_out.values())
    assert counted == pytest.approx(found.published, rel=found.within)
    assert found.within <= 0.01 or found.remark


@pytest.mark.parametrize(
    "name",
    [
        *("switch-base-8", "switch-base-64", "switch-base-128", "mixtral-8x7b"),
        *("qwen1.5-moe-a2.7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt2-medium"),
        *("gpt2-large", "gpt-1.5b", "bert-large", "t5-large"),
    ],
)
def test_released_checkpoints_are_counted_exactly(name: str) -> None:
    found = preset(name)
    left_out = sum(found.left_out.values())
    assert found.parameters.total + left_out == found.published


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),  # arXiv 2401.04088, section 1
        ("qwen1.5-moe-a2.7b", 2.7),  # the A2.7B of its name
        ("qwen3-30b-a3b", 3.3),  # its model card
        ("deepseek-v3", 37.0),  # arXiv 2412.19437, abstract
    ],
)
def test_what_a_token_passes_through_is_the_published_share(
    name: str, billions: float
) -> None:
    assert preset(name).parameters.active / 1e9 == pytest.approx(billions, rel=0.02)


def test_the_default_model_is_the_tiny_one() -> None:
    assert preset("tiny").model == ModelShape()
    assert next(iter(PRESETS)) == "tiny"


def test_a_count_by_part() -> None:
    h, f, v = 8, 20, 30
    shape = ModelShape(
        layers=3, hidden=h, heads=2, ffn=f, vocabulary=v, sequence=5, experts=4
    )
    count = parameter_count(shape, k=2)
    assert count.embedding == (v + 5) * h
    assert count.head == count.shared == 0
    assert count.attention == 3 * 4 * h * h
    assert count.ffn == 2 * 2 * h * f
    assert count.experts == 4 * 2 * h * f
    assert count.router == 4 * h
    assert count.norms == 7 * h
    assert count.active == count.total - 2 * 2 * h * f


def test_a_model_that_is_none() -> None:
    with pytest.raises(LayoutError, match=r"not 'mixtral': did you mean mixtral-8x7b"):
        preset("mixtral")
    with pytest.raises(LayoutError, match=r"not '': see moetraffic models"):
        preset("")
