"""Schedules of programs that never were: made up as calls, stripped, found again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.trace.merge.rank_record import STEP, RankRecord
from moetraffic.trace.model import (
    ROUTING,
    Site,
)

from .conftest import inferred


def found(records: list[RankRecord]) -> dict[int, list[Label]]:
    """What each call is said to be."""
    return {
        record.rank: [_label(record, call) for call in record.calls]
        for record in records
    }


def _label(record: RankRecord, call: Any) -> Label:
    site = record.sites[call["site"]]
    return int(call["iteration"]), site.phase, site.layer, site.label


def kinds(records: list[RankRecord]) -> dict[int, list[str]]:
    return {record.rank: record.steps["kind"].tolist() for record in records}


def check(made: Any) -> list[RankRecord]:
    """Find a made-up run again."""
    records, truth = made.run()
    out = inferred(records)
    told = found(out)
    for rank, labels in truth.items():
        wrong = [
            (at, a, b)
            for at, (a, b) in enumerate(zip(labels, told[rank], strict=True))
            if a != b
        ]
        assert not wrong, (rank, wrong[:4], out[0].meta.schedule)
    for mine in kinds(out).values():
        assert mine == made.kinds
    return out


Label = tuple[int, str, int, str]  # iteration, phase, layer, label
Made = Callable[..., Any]

PLAYS = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 6),
        "micro_batches": st.integers(1, 4),
        "steps": st.integers(3, 7),
        "even": st.booleans(),
        "counts": st.booleans(),
        "probabilities": st.booleans(),
        "first_gradient": st.booleans(),
        "recompute": st.booleans(),
        "evaluate_every": st.sampled_from([0, 2, 3]),
        "evaluated": st.integers(1, 3),
        "evaluated_loss": st.booleans(),
        "warm_up": st.booleans(),
        "seed": st.integers(0, 1000),
    }
)


def possible(play: dict[str, Any]) -> dict[str, Any]:
    """Where all parts are equal, counts tell experts from sequence parallelism."""
    return play | {"counts": play["counts"] or play["even"]}


@given(play=PLAYS)
def test_made_up_runs_are_found_again(theatre: Made, play: dict[str, Any]) -> None:
    check(theatre(**possible(play)))


@settings(max_examples=10)
@given(play=PLAYS, stages=st.integers(2, 4), setup=st.booleans())
def test_made_up_pipelines_are_found_again(
    theatre: Made, play: dict[str, Any], stages: int, setup: bool
) -> None:
    play |= {
        "stages": stages,
        "setup": setup,
        "routers": True,
        "probabilities": False,
        "evaluate_every": 0,
        "counts": play["counts"] or play["even"],
        "layers": min(play["layers"], 3),
    }
    check(theatre(**play))


@settings(max_examples=10)
@given(
    play=PLAYS,
    scales=st.booleans(),
    routers=st.booleans(),
    trailing=st.booleans(),
    told_layers=st.booleans(),
)
def test_made_up_runs_with_attention_are_found_again(
    theatre: Made,
    play: dict[str, Any],
    scales: bool,
    routers: bool,
    trailing: bool,
    told_layers: bool,
) -> None:
    play |= {
        "attention": True,
        "scales": scales and not play["even"],
        "probabilities": play["probabilities"] and not (play["even"] or scales),
        "routers": routers or told_layers,
        "counts": True,
        "trailing": trailing,
        # gathers after a step and after an evaluation would look the same
        "evaluated_loss": play["evaluated_loss"] and not trailing,
        "steps": 5,
        "layers": min(play["layers"], 4),
        "told_layers": told_layers,
    }
    check(theatre(**play))


def test_padded_layers_beside_attention_are_left_unnamed(theatre: Made) -> None:
    records, truth = theatre(even=True, attention=True, counts=False).run()
    out = inferred(records)
    assert all(not s.phase and not s.label for x in out for s in x.sites)
    assert "cannot be distinguished" in out[0].meta.schedule
    # the steps are found all the same
    assert [x[0] for x in found(out)[0]] == [x[0] for x in truth[0]]


def test_routers_tell_padded_experts_from_attention(theatre: Made) -> None:
    check(theatre(even=True, attention=True, counts=False, routers=True))


@pytest.mark.parametrize("routers", [True, False])
def test_ring_attention_is_no_pipeline(
    theatre: Made, monkeypatch: pytest.MonkeyPatch, routers: bool
) -> None:
    made = theatre(attention=True, routers=routers)

    def attend(_stage: int, direction: str) -> None:
        for rank in made.ranks:
            before, after = (rank.number + step for step in (-1, 1))
            for source, destination in ((rank.number, after), (before, rank.number)):
                site = Site(
                    group=rank.group(made.everyone, "cp"),
                    operation="send_recv",
                    peers=(source % made.world, destination % made.world),
                    direction=direction,
                    dtype="float32",
                    row_bytes=4,
                )
                rank.call(site, 4096, (made.iteration, "", -1, ""))

    monkeypatch.setattr(made, "attend", attend)
    check(made)


def test_layers_of_a_pipeline_without_routers_are_unknown(theatre: Made) -> None:
    records, truth = theatre(stages=2, layers=2).run()
    out = inferred(records)
    assert {s.layer for record in out for s in record.sites} == {-1}
    assert [x[0] for x in found(out)[0]] == [x[0] for x in truth[0]]
    assert "which stages of the pipeline" in out[0].meta.schedule


def test_a_routing_is_bound_to_the_group_of_its_dispatch(theatre: Made) -> None:
    out = check(theatre(stages=2, routers=True, layers=2))
    for record in out:
        ranks = tuple(range(4)) if record.rank < 4 else tuple(range(4, 8))
        routed = [s for s in record.sites if s.operation == ROUTING]
        assert {record.groups[s.group].ranks for s in routed} == {ranks}
        assert {s.label for s in routed} == {"router"}


def test_a_routing_reported_for_all_ranks_is_bound_to_the_group_of_its_dispatch(
    theatre: Made,
) -> None:
    """``capture.routing`` without a group reports it for the default group."""
    records, _ = theatre(stages=2, routers=True, layers=2).run()
    reported = []
    for record in records:
        sites = [
            replace(s, label="") if s.operation == ROUTING else s for s in record.sites
        ]
        reported.append(replace(record, sites=sites))
    for record in inferred(reported):
        ranks = tuple(range(4)) if record.rank < 4 else tuple(range(4, 8))
        routed = [s for s in record.sites if s.operation == ROUTING]
        assert {record.groups[s.group].ranks for s in routed} == {ranks}
        assert {s.layer for s in routed} == ({0, 1} if record.rank < 4 else {2, 3})


def marked(
    records: list[RankRecord], iterations: dict[int, list[int]], count: int, loss: float
) -> list[RankRecord]:
    """Records with marked training steps, to which the calls belong."""
    steps = np.zeros(count, STEP)
    steps["iteration"], steps["kind"] = range(count), "train"
    steps["loss"], steps["tokens"] = loss, -1
    made = []
    for record in records:
        calls = record.calls.copy()
        calls["iteration"] = iterations[record.rank]
        made.append(replace(record, calls=calls, steps=steps.copy()))
    return made


def test_steps_of_an_optimizer_do_not_hide_evaluations(theatre: Made) -> None:
    """An optimizer marks its own steps: an evaluation stands in the step after it."""
    made = theatre(evaluate_every=2, evaluated=2)
    records, truth = made.run()
    ends = [k != "evaluation" for k in made.kinds]
    number = np.cumsum([0, *ends])[:-1]  # the step in which each stands
    of_calls = {rank: [number[x[0]] for x in told] for rank, told in truth.items()}
    out = inferred(marked(records, of_calls, made.play.steps, np.nan))
    assert found(out) == truth
    assert kinds(out)[0] == made.kinds
    # so do steps of the program, whose losses are those of its training steps
    out = inferred(marked(records, of_calls, made.play.steps, 1.0))
    assert found(out) == truth
    for record in out:
        trained = record.steps["kind"] == "train"
        assert record.steps["kind"].tolist() == made.kinds
        assert (record.steps["loss"][trained] == 1.0).all()
        assert np.isnan(record.steps["loss"][~trained]).all()


def test_marked_steps_are_told_by_what_they_lack(theatre: Made) -> None:
    made = theatre(evaluate_every=2)
    records, truth = made.run()
    of_calls = {rank: [x[0] for x in told] for rank, told in truth.items()}
    out = inferred(marked(records, of_calls, len(made.kinds) + 1, 2.0))
    assert kinds(out)[3] == [*made.kinds, "train"]
    assert found(out) == truth


def test_what_was_told_stays(theatre: Made) -> None:
    records, truth = theatre().run()
    again = inferred(inferred(records))
    assert found(again) == truth


def test_a_record_that_ends_in_a_step_does_not_say_that_it_ended(theatre: Made) -> None:
    records, truth = theatre(steps=5, warm_up=True).run()
    cut = [replace(s, calls=s.calls[:-7]) for s in records]
    out = inferred(cut)
    for record in out:
        assert record.steps["iteration"].tolist() == [0, 1, 2, 3]
        assert found(out)[record.rank] == truth[record.rank][:-7]


def test_ranks_that_end_apart_agree(theatre: Made) -> None:
    records, truth = theatre(steps=6).run()
    cut = [replace(s, calls=s.calls[: len(s.calls) - 40 * s.rank]) for s in records]
    out = found(inferred(cut))
    for rank, mine in out.items():
        assert mine == truth[rank][: len(mine)]


def test_layers_alone_are_no_steps(record: Any) -> None:
    """Dispatch, combine, dispatch, combine: steps or layers, nobody can tell."""
    rank = record
    for call in range(40):
        there, back = ([3, call], [call, 5]), ([call, 5], [3, call])
        sent, received = back if call % 2 else there
        rank.exchange(
            (0, 1), sent, received, dtype="float32", row_bytes=64,
            label=(-1, "", -1, ""),
        )  # fmt: skip
    (out,) = inferred([rank.record()])
    assert (out.calls["iteration"] == -1).all()
    assert len(out.steps) == 0
    assert "steps are unknown" in out.meta.schedule


@pytest.mark.slow
@given(play=PLAYS)
def test_many_made_up_runs_are_found_again(theatre: Made, play: dict[str, Any]) -> None:
    check(theatre(**possible(play)))
