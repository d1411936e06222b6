"""Experts of sampled tokens are kept by all that a trace goes through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import TraceError
from moetraffic.interop.anonymize import anonymize
from moetraffic.trace import ROUTING, Trace
from moetraffic.trace.choices import expert_ids, expert_mask
from moetraffic.trace.matrix import contiguous_placement
from moetraffic.trace.model import Group, Meta, Steps
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.trace.what_if.relocate import Relocation, relocate, routed_layers


def drawn(
    experts: int, k: int, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """Masks ``[*shape, E]`` of k distinct experts."""
    order = np.argsort(rng.random((*shape, experts)), axis=-1)
    return order < k


def sampled_trace(
    ranks: int = 4, experts: int = 10, tokens: int = 5, iterations: int = 6
) -> tuple[Trace, np.ndarray]:
    """A trace of two layers, the first sampled, and its masks ``[n, R, S, E]``."""
    rng = np.random.default_rng(1)
    masks = drawn(experts, 3, (iterations, ranks, tokens), rng)
    masks[0, 1, 3:] = False  # a member that routed three tokens
    layers = [
        RoutedLayer(
            layer=layer,
            slot=0,
            iteration=np.arange(iterations),
            demand=ArrayPanel(masks.sum(axis=2).astype(np.int32)),
            dropped=None,
            row_bytes=8,
            dtype="float32",
            chosen=expert_ids(masks) if layer == 0 else None,
        )
        for layer in range(2)
    ]
    groups = [Group(kind="ep", ranks=tuple(range(ranks)))]
    cells = iterations, ranks
    trace = trace_of_routing(
        layers,
        groups=groups,
        placements=contiguous_placement(groups, [0, 1], experts),
        meta=Meta(world=ranks, dp=ranks, ep=ranks, experts=experts, k=3, virtual=True),
        steps=Steps(
            iteration=np.arange(iterations),
            kind=("train",) * iterations,
            loss=np.zeros(cells),
            tokens=np.full(cells, tokens),
            start=np.zeros(cells, np.int64),
            end=np.zeros(cells, np.int64),
            source=np.zeros(iterations, np.uint8),
        ),
    )
    return trace, masks


@given(st.integers(1, 70), st.integers(0, 99))
def test_ids_are_exact(experts: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random((3, 2, experts)) < 0.3
    assert (expert_mask(expert_ids(mask), experts) == mask).all()


def test_a_file_a_selection_and_an_anonymous_copy_keep_them(tmp_path: Path) -> None:
    trace, masks = sampled_trace()
    trace.save(tmp_path / "run.h5")
    with Trace.open(tmp_path / "run.h5") as stored:
        for same in (trace, stored, anonymize(stored).trace):
            routed = same.find(operation=ROUTING, layer=0)
            assert (expert_mask(same.chosen(routed), 10) == masks).all()
        routed = stored.find(operation=ROUTING, layer=0, iterations=range(2, 5))
        part = stored.select(routed)
        assert (expert_mask(part.chosen(np.arange(3)), 10) == masks[2:5]).all()
        part.save(tmp_path / "part.h5")
        with Trace.open(tmp_path / "part.h5") as again:
            assert (expert_mask(again.chosen(np.arange(3)), 10) == masks[2:5]).all()


def test_another_placement_keeps_them_and_joined_ranks_have_both() -> None:
    trace, masks = sampled_trace()
    two = [(0, 1)]
    to = Relocation(
        ranks=2,
        groups=two,
        place=lambda load, width: (np.arange(10), np.arange(10) % 2),
    )
    moved = relocate(trace, to)
    found = expert_mask(moved.chosen(moved.find(operation=ROUTING, layer=0)), 10)
    assert found.shape == (6, 2, 10, 10)
    assert (found == masks.reshape(6, 2, 10, 10)).all()
    assert routed_layers(moved)[1].chosen is None


def test_a_trace_without_them_names_the_option() -> None:
    trace, _ = sampled_trace()
    for routed in (
        trace.find(operation=ROUTING, layer=1),
        trace.find(operation=ROUTING),
    ):
        with pytest.raises(TraceError, match="--token-sample"):
            expert_mask(trace.chosen(routed), 10)
