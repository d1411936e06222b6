"""Optimizer steps end iterations: within a backward pass, under scalers, between."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from moetraffic.analysis import analyze
from moetraffic.capture.optimizer_steps import OptimizerSteps
from moetraffic.trace import Trace
from moetraffic.trace.model import UNKNOWN_TIME

OVERFLOW, ITERATIONS = 3, 6


@pytest.fixture
def observed() -> Iterator[list[tuple[bool, bool]]]:
    """Of each record: within a backward pass, and skipped."""
    seen: list[tuple[bool, bool]] = []

    def put(_end: int, in_backward: bool, skipped: Any) -> None:
        # flags of a fused optimizer are read later, from the device
        whether = skipped if isinstance(skipped, bool) else any(f > 0 for f in skipped)
        seen.append((in_backward, whether))

    def failed(what: str, error: Exception) -> None:
        raise AssertionError(what) from error

    steps = OptimizerSteps(put, failed)
    yield seen
    steps.undo()
    assert not hasattr(torch.amp.GradScaler.step, "__wrapped__")


def one_each(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, o=optimizer: o.step())


def test_optimizers_within_a_backward_pass_are_one(
    observed: list[tuple[bool, bool]],
) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
    one_each(model)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    assert observed == [(False, False)] * 2
    observed.clear()
    rows = torch.ones(2, 4, requires_grad=True)
    inner: Any = checkpoint(model[0], rows, use_reentrant=True)
    model[2](model[1](inner)).sum().backward()
    # the nested pass ends within the outer one, which ends after it
    assert observed[0] == (True, False)
    assert observed[-1] == (False, False)


def test_a_scaler_skips_steps(observed: list[tuple[bool, bool]]) -> None:
    for fused in (False, True):
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for overflows in (False, True, False):
            scaler.scale(weight.sum()).backward()
            if overflows:
                assert weight.grad is not None
                weight.grad.fill_(float("inf"))
            before = weight.detach().clone()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert bool((before == weight).all()) == overflows
        assert observed == [(False, False), (False, True), (False, False)]
        observed.clear()


class Inner:
    """An optimizer of a framework, which is none of torch."""

    def __init__(self) -> None:
        self.overflow = False
        self.torch = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


class DeepSpeedEngine:
    def __init__(self) -> None:
        self.optimizer = Inner()

    def _take_model_step(self, kwargs: Any) -> None:
        if not self.optimizer.overflow:
            self.optimizer.torch.step()


class MixedPrecisionOptimizer:
    def __init__(self) -> None:
        self.optimizer = Inner()

    def step(self) -> tuple[bool, float | None, None]:
        if self.optimizer.overflow:
            return False, None, None
        self.optimizer.torch.step()
        return True, 1.0, None


class ChainedOptimizer:
    def __init__(self) -> None:
        self.optimizer = Inner()
        self.parts = [MixedPrecisionOptimizer(), MixedPrecisionOptimizer()]

    def step(self) -> tuple[bool, float | None, None]:
        for part in self.parts:
            part.optimizer.overflow = self.optimizer.overflow
        *_, last = [part.step() for part in self.parts]
        return last


@pytest.mark.parametrize(
    ("kind", "module", "step"),
    [
        (
            DeepSpeedEngine,
            "deepspeed.runtime.engine",
            lambda owner: owner._take_model_step({}),
        ),
        (
            MixedPrecisionOptimizer,
            "megatron.core.optimizer.optimizer",
            lambda owner: owner.step(),
        ),
        (
            ChainedOptimizer,
            "megatron.core.optimizer.optimizer",
            lambda owner: owner.step(),
        ),
    ],
)
def test_scalers_of_frameworks(
    kind: type,
    module: str,
    step: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    found = types.ModuleType(module)
    setattr(found, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, module, found)
    observed = request.getfixturevalue("observed")
    owner: Any = kind()
    for overflows in (False, True, False):
        owner.optimizer.overflow = overflows
        step(owner)
    assert observed == [(False, False), (False, True), (False, False)]


def kinds_and_calls(path: Path) -> tuple[tuple[str, ...], list[float], list[int]]:
    with Trace.open(path) as trace:
        assert trace.steps.iteration.tolist() == list(range(ITERATIONS))
        calls = np.bincount(trace.occurrences.iteration, minlength=ITERATIONS)
        return trace.steps.kind, trace.steps.loss[:, 0].tolist(), calls.tolist()


@pytest.mark.slow
def test_explicit_steps_own_the_iterations(long_stage: Path) -> None:
    train, losses = ("train",) * ITERATIONS, [float(n) for n in range(ITERATIONS)]
    for name, calls in (("inside", 10), ("thrice", 12)):
        found = kinds_and_calls(long_stage / f"{name}.h5")
        assert found == (train, losses, [calls] * ITERATIONS), name
    kinds, losses_, calls_ = kinds_and_calls(long_stage / "scaled.h5")
    assert [n for n, kind in enumerate(kinds) if kind == "skipped"] == [OVERFLOW]
    assert (losses_, calls_) == (losses, [6] * ITERATIONS)


@pytest.mark.slow
def test_sampled_iterations_keep_their_numbers(long_stage: Path) -> None:
    with Trace.open(long_stage / "sampled.h5") as trace:
        assert (trace.meta.every, trace.meta.complete) == (3, True)
        assert trace.iterations.tolist() == [0, 3, 9]
        calls = np.bincount(trace.occurrences.iteration, minlength=12)
        assert calls[[0, 3, 9]].tolist() == [4] * 3
        assert calls.sum() == 12
        result = analyze(trace)
    assert any("one of 3 iterations" in note for note in result.notes)


@pytest.mark.slow
def test_a_maximum_size_is_stated(long_stage: Path) -> None:
    with Trace.open(long_stage / "limited.h5") as trace:
        for rank in range(2):
            ended = trace.steps.end[:, rank] != UNKNOWN_TIME
            last = int(trace.steps.iteration[ended].max())
            said = f"left out iterations from {last + 1} on"
            assert last < 11
            assert said in trace.meta.missing
