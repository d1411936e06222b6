"""A recorder samples tokens, and records all experts of each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from moetraffic import capture
from moetraffic.capture import Recorder
from moetraffic.capture.token_sample import TokenSample, choice_ids
from moetraffic.errors import CaptureError
from moetraffic.trace import ROUTING, Trace
from moetraffic.trace.choices import expert_mask


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process as the one rank of a world."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    gc.collect()


@given(st.integers(1, 40), st.integers(0, 500))
def test_one_token_of_each_part(tokens: int, count: int) -> None:
    found = TokenSample(tokens, 0).positions(count)
    if count <= tokens:
        assert found.tolist() == list(range(count))
        return
    edges = np.arange(tokens + 1) * count // tokens
    assert (edges[:-1] <= found).all()
    assert (found < edges[1:]).all()


def test_every_token_is_as_likely() -> None:
    sample = TokenSample(3, 1)
    seen = np.bincount(np.concatenate([sample.positions(7) for _ in range(3000)]))
    # parts of two, two and three tokens
    expected = 3000 / np.array([2, 2, 2, 2, 3, 3, 3])
    assert (np.abs(seen - expected) < 5 * np.sqrt(expected)).all()


IDS = torch.tensor([[0, 3], [2, -1], [1, 9], [4, 4]])


def test_ids_are_the_experts_of_each_token() -> None:
    ids = choice_ids(TokenSample(8, 0).take(IDS), 5)
    assert ids.dtype == np.int16
    # neither a dropped copy (-1) nor padding (E or more) is an expert
    assert ids.tolist() == [[0, 3], [2, -1], [1, -1], [4, 4]]
    mask = torch.zeros(2, 2, 5, dtype=torch.bool)
    mask[0, 1, 3] = mask[1, 0, [0, 4]] = True
    ids = choice_ids(TokenSample(8, 0).take(mask), 5)
    assert ids.tolist() == [[-1, -1], [3, -1], [0, 4], [-1, -1]]


@pytest.mark.parametrize("chosen", [torch.ones(4, 2), torch.ones(4).long(), [[0, 1]]])
def test_what_names_no_experts_is_refused(chosen: Tensor) -> None:
    with pytest.raises(ValueError, match="ids"):
        TokenSample(4, 0).take(chosen)


def test_a_mask_has_a_column_for_each_expert() -> None:
    with pytest.raises(ValueError, match="5 columns"):
        choice_ids(torch.ones(2, 4, dtype=torch.bool), 5)


@pytest.mark.parametrize("tokens", [-1, 1 << 17, 2.5])
def test_an_impossible_sample_is_refused(tokens: int, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="token_sample"):
        Recorder(tmp_path / "run.h5", token_sample=tokens)


class Gate(nn.Module):
    num_experts = 6

    def forward(self, x: Tensor) -> Tensor:
        return x.topk(2).indices


def _annotated(x: Tensor) -> Tensor:
    ids = x.topk(2).indices
    capture.routing(0, ids.flatten().bincount(minlength=6), chosen=ids)
    return ids


@pytest.mark.parametrize("route", [_annotated, Gate()])
def test_a_run_of_ones_own(
    alone: None, tmp_path: Path, route: Callable[[Tensor], Tensor]
) -> None:
    undo = capture.router(Gate, lambda inputs, output: output)
    told = []
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(0)
    with Recorder(tmp_path / "run.h5", k=2, token_sample=4) as recorder:
        for tokens in (3, 9, 9):
            told.append(route(torch.randn(tokens, 6, generator=generator)))
            recorder.step()
        # choices that cannot be read cost no counts
        capture.routing(1, torch.tensor([1, 2]), chosen=torch.ones(3))
        recorder.step()
    undo()
    assert (torch.get_rng_state() == state).all()
    with Trace.open(tmp_path / "run.h5") as trace:
        routed = trace.find(operation=ROUTING, layer=0)
        experts = trace.demand(routed).shape[2]
        found = expert_mask(trace.chosen(routed), experts)
        assert found.shape == (3, 1, 4, 6)
        for (mine,), ids in zip(found, told, strict=True):
            there = [tuple(sorted(row)) for row in ids.tolist()]
            sampled = [tuple(np.flatnonzero(row).tolist()) for row in mine]
            assert len(set(sampled) - set(there) - {()}) == 0
            assert sum(map(bool, sampled)) == min(4, len(ids))
        other = trace.find(operation=ROUTING, layer=1)
        assert trace.demand(other).tolist() == [[[1, 2]]]
        assert "1 x sample of tokens" in trace.meta.missing
