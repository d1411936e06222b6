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
    PLACEMENT,
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
@given(play=PLAYS, stages=st.integers(2, 4), routers=st.booleans(), setup=st.booleans())
def test_made_up_pipelines_are_found_again(
    theatre: Made, play: dict[str, Any], stages: int, routers: bool, setup: bool
) -> None:
    play |= {
        "stages": stages,
        "setup": setup,
        "routers": routers,
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


def test_placements_follow_a_routing_to_its_group(theatre: Made) -> None:
    records, _ = theatre(stages=2, routers=True, layers=1).run()
    world = tuple(range(8))
    given_rows = []
    for record in records:
        group = next(n for n, g in enumerate(record.groups) if g.ranks == world)
        rows = [(group, record.rank // 4, e, 0, e, 0) for e in range(8)]
        given_rows.append(replace(record, placements=np.array(rows, PLACEMENT)))
    for record in inferred(given_rows):
        first = record.rank // 4 * 4
        assert record.placements["rank"].tolist() == [first + e // 2 for e in range(8)]
        (number,) = set(record.placements["group"].tolist())
        assert record.groups[number].ranks == tuple(range(first, first + 4))


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


@pytest.mark.parametrize("deferred", [True, False])
def test_gradients_reduced_on_the_way_back(record: Any, deferred: bool) -> None:
    """DDP reduces amid the backward pass, with no_sync only in the last of a step."""
    rank = record
    for step in range(8):
        for micro_batch in range(3 if deferred else 1):
            for direction in ("forward", "backward"):
                rank.exchange(
                    (0, 1),
                    [3 + step, 5],
                    [5, 3 + step] if direction == "forward" else [4, 4],
                    dtype="float32",
                    row_bytes=64,
                    direction=direction,
                    label=(step, "", -1, ""),
                )
            if micro_batch == 2 or not deferred:
                site = Site(
                    group=0,
                    operation="all_reduce",
                    direction="backward",
                    dtype="float32",
                    row_bytes=4,
                )
                rank.call(site, 4096, (step, "", -1, ""))
    (out,) = inferred([rank.record()])
    assert out.calls["iteration"].tolist() == [x[0] for x in rank.truth]
    assert out.steps["kind"].tolist() == ["train"] * 8


def test_a_program_without_a_backward_repeats_itself(record: Any) -> None:
    rank = record
    for step in range(9):
        for _ in range(4):
            rank.other("all_gather", (0, 1), step)
        rank.other("broadcast", (0, 1), step)
    (out,) = inferred([rank.record()])
    assert out.calls["iteration"].tolist() == [x[0] for x in rank.truth]


def test_a_part_of_a_call_is_counted_as_one(record: Any) -> None:
    """One of four members recorded a call: a quarter of it, which rounds to none."""
    record.world = 4
    record.exchange(
        (0, 1, 2, 3), [3, 1, 2, 0], [1, 5, 2, 2], dtype="float32", row_bytes=64,
        label=(-1, "", -1, ""),
    )  # fmt: skip
    (out,) = inferred([record.record()])
    assert "1 of 1 all-to-alls without annotation" in out.meta.schedule


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
    assert "steps could not be inferred" in out.meta.schedule


@pytest.mark.slow
@given(play=PLAYS)
def test_many_made_up_runs_are_found_again(theatre: Made, play: dict[str, Any]) -> None:
    check(theatre(**possible(play)))
