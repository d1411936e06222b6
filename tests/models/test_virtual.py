"""Virtual expert parallelism records what a real run on as many ranks sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moetraffic.capture import VirtualRecorder
from moetraffic.models import train_virtually, virtual_training
from moetraffic.models.corpus import Corpus
from moetraffic.models.virtual_training import VirtualTraining
from moetraffic.patterns import Gating, Layout, ModelShape, Training, Workload
from moetraffic.trace import PHASES, ROUTING, Trace
from moetraffic.trace.choices import expert_mask

Run = Callable[..., list[Any]]

SHAPE = ModelShape(layers=4, hidden=32, heads=2, sequence=32, experts=8)
TRAINING = Training(iterations=8, micro_batch=2, learning_rate=3e-3, warmup=2, seed=5)

CONSTANT = Corpus(text=torch.zeros(100, dtype=torch.uint8), source="zeros")
"""Every batch is the same: what differs between runs is noise."""
RERUN = "a rerun with other data, 4 ranks"
CASES = {
    "switch, 4 ranks": (
        Layout(dp=4, ep=4),
        Gating(router="switch", k=1, dispatch="dropped", capacity_factor=1.0),
        1,
    ),
    "top-2, 4 ranks in 2 groups": (Layout(dp=4, ep=2), Gating(), 2),
    "padded top-2, 4 ranks": (
        Layout(dp=4, ep=4),
        Gating(dispatch="padded", capacity_factor=0.9),
        1,
    ),
    "loss-free bias and balance by sequence, 4 ranks": (
        Layout(dp=4, ep=2),
        Gating(
            router="deepseek",
            balance_scope="sequence",
            options={"groups": 4, "top_groups": 2, "bias_rate": 0.05},
        ),
        2,
    ),
    "balance over all ranks, 4 ranks": (
        Layout(dp=4, ep=4),
        Gating(balance_scope="global", balance=0.1),
        1,
    ),
    "top-2 with capacity, 8 ranks": (
        Layout(dp=8, ep=8),
        Gating(dispatch="dropped", capacity_factor=0.8),
        1,
    ),
    RERUN: (Layout(dp=4, ep=4), Gating(), 1),
}


def workload(case: str) -> Workload:
    layout, gating, accumulation = CASES[case]
    return Workload(
        model=SHAPE,
        gating=gating,
        layout=layout,
        training=replace(
            TRAINING, accumulation=accumulation, data_seed=7 if case == RERUN else None
        ),
    )


def virtually(work: Workload, path: Path, token_sample: int = 0) -> Trace:
    work = replace(work, training=replace(work.training, virtual=True))
    recorder = VirtualRecorder(path, workload=work, token_sample=token_sample)
    with recorder:
        train_virtually(work, recorder)
    return Trace.open(path)


def called(trace: Trace) -> dict[tuple[Any, ...], int]:
    """Sites of routing and of exchanges by what they are."""
    return {
        (s.operation, s.label, s.layer, s.phase, s.slot, trace.groups[s.group].ranks): n
        for n, s in enumerate(trace.sites)
        if s.operation in (ROUTING, "all_to_all")
    }


SOME = {"top-2, 4 ranks in 2 groups"}
"""Which of the cases runs always; the others run with the slow tests."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if c in SOME else pytest.mark.slow) for c in CASES],
)
def test_virtual_equals_real(case: str, run_ranks: Run, tmp_path: Path) -> None:
    work = workload(case)
    real_path = tmp_path / "real.h5"
    tokens = 64  # of a micro-batch: all are sampled
    run_ranks(
        "program",
        work.layout.world,
        workload=work.to_json(),
        capture=str(real_path),
        token_sample=str(tokens),
    )
    with (
        Trace.open(real_path) as real,
        virtually(work, tmp_path / "v.h5", tokens) as made,
    ):
        assert not real.meta.virtual
        assert made.meta.virtual
        assert made.meta.nodes == ("",) * work.layout.world or made.meta.nodes[0]
        assert called(made).keys() == called(real).keys()
        for what, number in called(made).items():
            mine = np.flatnonzero(made.occurrences.site == number)
            its = np.flatnonzero(real.occurrences.site == called(real)[what])
            assert (
                made.occurrences.iteration[mine] == real.occurrences.iteration[its]
            ).all()
            if what[0] == ROUTING:
                assert (made.demand(mine) == real.demand(its)).all()
                assert (made.dropped(mine) == real.dropped(its)).all()
                assert made.demand(mine).sum() > 0
                demand = made.demand(mine)
                chosen = expert_mask(made.chosen(mine), demand.shape[-1])
                same = expert_mask(real.chosen(its), demand.shape[-1])
                assert (chosen == same).all()
                assert (chosen.sum(axis=2) == demand).all()
            else:
                assert (made.wire(mine) == real.wire(its)).all()
        np.testing.assert_allclose(made.steps.loss, real.steps.loss, rtol=1e-4)
        assert (made.steps.tokens == real.steps.tokens).all()


def test_a_rerun_has_the_initialization_of_its_run_and_other_data() -> None:
    run = workload("top-2, 4 ranks in 2 groups")
    kept = replace(run, training=replace(run.training, data_seed=TRAINING.seed))
    rerun = replace(run, training=replace(run.training, data_seed=9))
    other = replace(run, training=replace(run.training, seed=9))
    made = [VirtualTraining(work) for work in (run, kept, rerun, other)]
    start = [torch.cat([p.flatten() for p in m.model.parameters()]) for m in made]
    assert torch.equal(start[0], start[2])
    assert not torch.equal(start[0], start[3])
    tokens = [m.batch(0, 0, range(4))[0] for m in made]
    assert torch.equal(tokens[2], tokens[3])  # the same data, another initialization
    assert not torch.equal(tokens[0], tokens[2])
    losses = [m.iterate(0) for m in made]
    assert losses[0] == losses[1]  # the data seed that a run has by default
    assert losses[0] != losses[2] != losses[3]


def test_routing_noise_follows_the_data_seed() -> None:
    gating = Gating(router="gshard")  # draws the second expert
    run = replace(workload("top-2, 4 ranks in 2 groups"), gating=gating)
    loads = []
    for data_seed in (None, 9):
        plan = replace(run.training, data_seed=data_seed)
        made = VirtualTraining(replace(run, training=plan), CONSTANT)
        made.iterate(0)
        loads.append(torch.stack([m.load for m in made.model.mixtures]))
    assert not torch.equal(*loads)


def test_a_sample_of_tokens_changes_no_loss(tmp_path: Path) -> None:
    work = workload("top-2, 4 ranks in 2 groups")
    with (
        virtually(work, tmp_path / "plain.h5") as plain,
        virtually(work, tmp_path / "sampled.h5", 5) as sampled,
    ):
        assert (plain.steps.loss == sampled.steps.loss).all()
        routed = sampled.find(operation=ROUTING)
        assert (plain.demand(routed) == sampled.demand(routed)).all()
        chosen = expert_mask(sampled.chosen(routed), 8)
        assert chosen.shape[1:] == (2, 5, 8)
        assert (chosen.sum(axis=3) == 2).all()
        assert (chosen.sum(axis=2) <= sampled.demand(routed)).all()


def test_shards_in_several_passes_are_the_same_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = workload("top-2 with capacity, 8 ranks")
    with virtually(work, tmp_path / "one.h5") as one:
        monkeypatch.setattr(
            virtual_training, "PASS_TOKENS", 3 * 2 * 32
        )  # 3, 3 and 2 ranks
        with virtually(work, tmp_path / "three.h5") as three:
            routed = one.find(operation=ROUTING)
            assert (one.demand(routed) == three.demand(routed)).all()
            assert (one.dropped(routed) == three.dropped(routed)).all()
            np.testing.assert_allclose(one.steps.loss, three.steps.loss, rtol=1e-4)


def test_a_virtual_program_is_every_ranks_calls_in_order(tmp_path: Path) -> None:
    work = workload("top-2, 4 ranks in 2 groups")
    with virtually(work, tmp_path / "v.h5") as made:
        for rank in range(4):
            calls = made.order(rank)
            first = calls[made.occurrences.iteration[calls] == made.iterations[0]]
            called = [made.sites[n] for n in made.occurrences.site[first].tolist()]
            phases = [(s.slot, s.layer, s.phase) for s in called if s.phase]
            expected = [
                *((1, "dispatch"), (1, "combine"), (3, "dispatch"), (3, "combine")),
                *((3, "combine_grad"), (3, "dispatch_grad")),
                *((1, "combine_grad"), (1, "dispatch_grad")),
            ]
            assert phases == [(slot, *one) for slot in (0, 1) for one in expected]
        assert {s.phase for s in made.sites if s.phase} == set(PHASES)


def test_a_kill_loses_what_came_after_the_last_save(tmp_path: Path) -> None:
    work = workload("switch, 4 ranks")
    path = tmp_path / "v.h5"
    recorder = VirtualRecorder(path, workload=work, save_every=3).__enter__()
    train_virtually(work, recorder)  # 8 steps, not closed
    with Trace.open(path) as trace:
        assert trace.steps.iteration.tolist() == list(range(6))
        assert not trace.meta.complete
        assert "not at its end after 6 iterations" in trace.meta.missing
    recorder.close()
    with Trace.open(path) as trace:
        assert trace.steps.iteration.tolist() == list(range(8))
        assert trace.meta.complete
