"""The list of parameters that patterns are computed from is the model's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from moetraffic.models import language_model
from moetraffic.patterns import PRESETS, parameter_count
from moetraffic.patterns.schedules import chunk_layers
from moetraffic.workload.tensors import model_tensors


@pytest.mark.parametrize("name", PRESETS)
def test_the_parameters_are_those_of_the_model(name: str) -> None:
    preset = PRESETS[name]
    shape = preset.model
    encoder = shape.encoder_layers
    if encoder:
        encoder = 2 if shape.two_stacks else 4
    small = replace(shape, layers=4, encoder_layers=encoder)
    with torch.device("meta"):
        model = language_model(small, preset.gating)
    built = [(n, tuple(p.shape)) for n, p in model.named_parameters()]
    assert [(t.name, t.sizes) for t in model_tensors(small)] == built
    experts = {id(p) for p in model.expert_parameters()}
    marked = [id(p) in experts for p in model.parameters()]
    assert [t.part == "expert" for t in model_tensors(small)] == marked
    total = sum(t.elements for t in model_tensors(shape))
    assert total == parameter_count(shape).total


@pytest.mark.parametrize("stage", range(3))
def test_a_stage_has_what_its_layers_need(stage: int) -> None:
    preset = PRESETS["tiny"]
    held = chunk_layers(preset.model.layers, 3)[stage]
    with torch.device("meta"):
        model = language_model(preset.model, preset.gating, layers=held)
    built = [(n, tuple(p.shape)) for n, p in model.named_parameters()]
    listed = model_tensors(preset.model, layers=held)
    assert [(t.name, t.sizes) for t in listed] == built
