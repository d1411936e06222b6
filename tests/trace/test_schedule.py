"""Schedules of programs that never were: made up as calls, stripped, found again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.trace.model import (
    ALL_TO_ALL,
    PLACEMENT,
    ROUTING,
    UNKNOWN_TIME,
    Group,
    Meta,
    Site,
)
from moetraffic.trace.schedule import find_schedule
from moetraffic.trace.segment import EVENT, STEP, Segment

Label = tuple[int, str, int, str]  # iteration, phase, layer, label
HIDDEN = 64


@dataclass(kw_only=True)
class Play:
    """What a made-up run does."""

    layers: int = 3  # of a pipeline stage
    micro_batches: int = 2
    steps: int = 6
    stages: int = 1
    even: bool = False  # padded: every all-to-all sends equal parts
    counts: bool = True
    probabilities: bool = False
    attention: bool = False  # sequence parallelism beside the experts
    scales: bool = False  # FP8 dispatch with scale factors, BF16 combine
    routers: bool = False  # hooks on routers report
    first_gradient: bool = True  # the first dispatch's input needs a gradient
    recompute: bool = False
    evaluate_every: int = 0
    evaluated: int = 1  # batches of an evaluation
    evaluated_loss: bool = False
    skipped: tuple[int, ...] = ()
    warm_up: bool = False
    trailing: bool = False  # parameters are gathered at a step's end
    links: bool = True
    told_layers: bool = False
    window: int = 10_000  # calls of a segment
    seed: int = 0


@dataclass(kw_only=True)
class Rank:
    """The record of one rank while it plays."""

    number: int
    world: int
    groups: list[Group] = field(default_factory=list)
    sites: dict[Site, int] = field(default_factory=dict)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    splits: dict[int, list[Any]] = field(default_factory=dict)
    demand: list[Any] = field(default_factory=list)
    truth: list[Label] = field(default_factory=list)
    sequence: dict[int, int] = field(default_factory=dict)

    def group(self, ranks: tuple[int, ...], kind: str = "other") -> int:
        group = Group(kind=kind, ranks=ranks)
        if group not in self.groups:
            self.groups.append(group)
        return self.groups.index(group)

    def call(self, site: Site, payload: int, label: Label, *, link: int = -1) -> None:
        number = self.sites.setdefault(site, len(self.sites))
        count = -1
        if site.operation != ROUTING and site.peers == (-1, -1):
            count = self.sequence.get(site.group, 0)
            self.sequence[site.group] = count + 1
        now = 1000 * len(self.rows)
        row = (label[0], number, count, now, UNKNOWN_TIME, now + 500, payload, link)
        self.rows.append(row)
        self.truth.append(label)

    def exchange(
        self, ranks: tuple[int, ...], sent: Any, received: Any, **told: Any
    ) -> None:
        label, link = told.pop("label"), told.pop("link", -1)
        rows = self.splits.setdefault(len(ranks), [])
        row = told["row_bytes"]
        rows.append((np.asarray(sent) * row, np.asarray(received) * row))
        site = Site(group=self.group(ranks), operation=ALL_TO_ALL, **told)
        self.call(site, len(rows) - 1, label, link=link)

    def other(self, operation: str, ranks: tuple[int, ...], iteration: int) -> None:
        site = Site(
            group=self.group(ranks), operation=operation, dtype="float32", row_bytes=4
        )
        self.call(site, 4096, (iteration, "", -1, ""))

    def segments(self, play: Play) -> list[Segment]:
        parts = [
            self.rows[a : a + play.window]
            for a in range(0, len(self.rows), play.window)
        ] or [[]]
        made = []
        for index, part in enumerate(parts):
            events = np.zeros(len(part), EVENT)
            names = ("site", "sequence", "issue", "start", "end", "payload", "link")
            for at, name in enumerate(names):
                events[name] = [row[at + 1] for row in part]
            events["iteration"] = -1
            made.append(
                Segment(
                    rank=self.number,
                    index=index,
                    final=index == len(parts) - 1,
                    node="node",
                    meta=Meta(world=self.world),
                    groups=tuple(self.groups),
                    sites=tuple(self.sites),
                    events=events,
                    steps=np.zeros(0, STEP),
                    kinds=(),
                    splits={
                        w: np.array(rows, np.int64).reshape(-1, 2, w)
                        for w, rows in self.splits.items()
                    },
                    demand={8: np.array(self.demand, np.int32).reshape(-1, 2, 8)},
                )
            )
        return made


class Theatre:
    """Plays a run on every rank and remembers what each call was."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.rng = np.random.default_rng(play.seed)
        self.width = 4
        self.world = self.width * play.stages
        self.ranks = [Rank(number=n, world=self.world) for n in range(self.world)]
        self.kinds: list[str] = []
        self.iteration = -1
        self.links = 0

    def run(self) -> tuple[list[Segment], dict[int, list[Label]]]:
        play = self.play
        for rank in self.ranks:
            if play.warm_up:
                rank.other("broadcast", self.everyone, 0)
                rank.other("barrier", self.everyone, 0)
        for step in range(play.steps):
            if play.evaluate_every and step % play.evaluate_every == 1:
                self.evaluate()
            self.train(skipped=step in play.skipped)
        if play.evaluate_every:
            self.evaluate()
        segments = [s for r in self.ranks for s in r.segments(play)]
        return segments, {r.number: r.truth for r in self.ranks}

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.world))

    def members(self, stage: int) -> tuple[int, ...]:
        return tuple(range(stage * self.width, (stage + 1) * self.width))

    def begin(self, kind: str) -> None:
        self.iteration += 1
        self.kinds.append(kind)

    def evaluate(self) -> None:
        self.begin("evaluation")
        for _ in range(self.play.evaluated):
            self.forward(0, {})
        if self.play.evaluated_loss:
            for rank in self.ranks:
                rank.other("all_gather", self.everyone, self.iteration)

    def train(self, *, skipped: bool) -> None:
        self.begin("skipped" if skipped else "train")
        play = self.play
        for stage in range(play.stages):
            ahead = min(play.stages - stage, play.micro_batches)
            made: list[dict[int, Any]] = []
            for _ in range(ahead):
                made.append({})
                self.pass_forward(stage, made[-1])
            left = play.micro_batches - ahead
            while made:
                self.pass_backward(stage, made.pop(0))
                if left:
                    left -= 1
                    made.append({})
                    self.pass_forward(stage, made[-1])
        for rank in self.ranks:
            rank.other("all_reduce", self.everyone, self.iteration)
            if play.trailing and not skipped:
                rank.other("all_gather", self.everyone, self.iteration)

    def pass_forward(self, stage: int, memory: dict[int, Any]) -> None:
        if stage:
            self.between(stage - 1, stage, stage)
        self.forward(stage, memory)
        if stage + 1 < self.play.stages:
            self.between(stage, stage + 1, stage)

    def pass_backward(self, stage: int, memory: dict[int, Any]) -> None:
        if stage + 1 < self.play.stages:
            self.between(stage + 1, stage, stage)
        self.backward(stage, memory)
        if stage:
            self.between(stage, stage - 1, stage)

    def between(self, source: int, destination: int, mine: int) -> None:
        for rank in self.ranks[mine * self.width : (mine + 1) * self.width]:
            column = rank.number % self.width
            ranks = tuple(s * self.width + column for s in range(self.play.stages))
            site = Site(
                group=rank.group(ranks, "pp"),
                operation="send_recv",
                peers=(source, destination),
                dtype="float32",
                row_bytes=4,
            )
            rank.call(site, 4096, (self.iteration, "", -1, ""))

    def send(
        self,
        stage: int,
        matrix: Any,
        name: tuple[str, int, str],
        dtype: str,
        row: int,
        direction: str,
        link: int = -1,
    ) -> None:
        """One all-to-all on all members of a stage."""
        ranks = self.members(stage)
        phase, layer, label = name
        for member, number in enumerate(ranks):
            self.ranks[number].exchange(
                ranks,
                matrix[member],
                matrix[:, member],
                dtype=dtype,
                row_bytes=row,
                direction=direction,
                layer=layer if self.play.told_layers and direction == "forward" else -1,
                label=(self.iteration, phase, layer, label),
                link=link if self.play.links else -1,
            )

    def next_link(self) -> int:
        self.links += 1
        return self.links

    def matrix(self) -> Any:
        if self.play.even:
            return np.full((self.width, self.width), 8)
        return self.rng.multinomial(
            64, self.rng.dirichlet(np.ones(self.width), self.width)
        ).reshape(self.width, self.width)

    def attend(self, stage: int, direction: str) -> None:
        even = np.full((self.width, self.width), 1)
        for _ in range(4):
            self.send(stage, even, ("", -1, ""), "bfloat16", 4096, direction)

    def forward(self, stage: int, memory: dict[int, Any]) -> None:
        for at in range(self.play.layers):
            if self.play.attention:
                self.attend(stage, "forward")
            memory[at] = self.layer(stage, at, self.matrix(), "forward")

    def layer(self, stage: int, at: int, matrix: Any, direction: str) -> Any:
        play, layer = self.play, stage * self.play.layers + at
        links = [self.next_link() for _ in range(3)]
        even = np.ones((self.width, self.width), np.int64)
        if play.routers:
            for rank in self.ranks[stage * self.width : (stage + 1) * self.width]:
                rank.demand.append((np.arange(8), np.zeros(8)))
                site = Site(
                    group=rank.group(self.everyone),
                    operation=ROUTING,
                    layer=layer,
                    experts=8,
                    label="router",
                    direction=direction,
                )
                label = (self.iteration, "", layer, "router")
                rank.call(site, len(rank.demand) - 1, label)
        if play.counts:
            name = ("", layer, "count_exchange")
            self.send(stage, 2 * even, name, "int64", 8, direction)
        kind, row = ("float8_e4m3fn", HIDDEN) if play.scales else ("bfloat16", 2 * 64)
        self.send(
            stage, matrix, ("dispatch", layer, ""), kind, row, direction, links[0]
        )
        if play.probabilities:
            name = ("", layer, "probabilities")
            self.send(stage, matrix, name, "float32", 4, direction, links[1])
        if play.scales:
            name = ("", layer, "scale_factors")
            self.send(stage, matrix, name, "float32", 8, direction)
        self.send(
            stage,
            matrix.T,
            ("combine", layer, ""),
            "bfloat16",
            128,
            direction,
            links[2],
        )
        return matrix, links

    def backward(self, stage: int, memory: dict[int, Any]) -> None:
        play = self.play
        for at in reversed(range(play.layers)):
            matrix, links = memory[at]
            layer = stage * play.layers + at
            if play.recompute:
                self.layer(stage, at, matrix, "recompute")
            name = ("combine_grad", layer, "")
            self.send(stage, matrix, name, "bfloat16", 128, "backward", links[2])
            if play.probabilities:
                name = ("", layer, "probabilities")
                self.send(stage, matrix.T, name, "float32", 4, "backward", links[1])
            if layer or play.first_gradient:
                name = ("dispatch_grad", layer, "")
                self.send(stage, matrix.T, name, "bfloat16", 128, "backward", links[0])
            if play.attention:
                self.attend(stage, "backward")


def found(segments: list[Segment]) -> dict[int, list[Label]]:
    """What each call is said to be."""
    told: dict[int, list[Label]] = {}
    for segment in segments:
        mine = told.setdefault(segment.rank, [])
        for event in segment.events:
            site = segment.sites[event["site"]]
            mine.append((int(event["iteration"]), site.phase, site.layer, site.label))
    return told


def kinds(segments: list[Segment]) -> dict[int, list[str]]:
    told: dict[int, list[str]] = {}
    for segment in segments:
        told.setdefault(segment.rank, []).extend(segment.kinds)
    return told


def check(play: Play) -> list[Segment]:
    theatre = Theatre(play)
    segments, truth = theatre.run()
    out = find_schedule(segments)
    told = found(out)
    for rank, labels in truth.items():
        wrong = [
            (at, a, b)
            for at, (a, b) in enumerate(zip(labels, told[rank], strict=True))
            if a != b
        ]
        assert not wrong, (rank, wrong[:4], out[0].meta.schedule)
    for mine in kinds(out).values():
        assert mine == theatre.kinds
    return out


PLAYS = st.builds(
    Play,
    layers=st.integers(1, 6),
    micro_batches=st.integers(1, 4),
    steps=st.integers(3, 7),
    even=st.booleans(),
    counts=st.booleans(),
    probabilities=st.booleans(),
    first_gradient=st.booleans(),
    recompute=st.booleans(),
    evaluate_every=st.sampled_from([0, 2, 3]),
    evaluated=st.integers(1, 3),
    evaluated_loss=st.booleans(),
    warm_up=st.booleans(),
    links=st.booleans(),
    window=st.sampled_from([301, 10_000]),
    seed=st.integers(0, 1000),
)


@given(play=PLAYS)
def test_made_up_runs_are_found_again(play: Play) -> None:
    if play.even and not play.counts:
        play.probabilities = False
    check(play)


@settings(max_examples=10)
@given(play=PLAYS, stages=st.integers(2, 3), routers=st.booleans())
def test_made_up_pipelines_are_found_again(
    play: Play, stages: int, routers: bool
) -> None:
    check(
        replace(
            play,
            stages=stages,
            routers=routers,
            probabilities=False,
            evaluate_every=0,
            counts=play.counts or play.even,
            layers=min(play.layers, 3),
        )
    )


@settings(max_examples=10)
@given(
    play=PLAYS,
    scales=st.booleans(),
    routers=st.booleans(),
    trailing=st.booleans(),
    told_layers=st.booleans(),
    skipped=st.sampled_from([(), (2,), (1, 2)]),
)
def test_made_up_runs_with_attention_are_found_again(
    play: Play,
    scales: bool,
    routers: bool,
    trailing: bool,
    told_layers: bool,
    skipped: tuple[int, ...],
) -> None:
    play = replace(
        play,
        attention=True,
        scales=scales and not play.even,
        probabilities=play.probabilities and not play.even,
        routers=routers or told_layers,
        counts=True,
        trailing=trailing,
        steps=5,
        layers=min(play.layers, 4),
        skipped=skipped if trailing else (),
        told_layers=told_layers,
    )
    check(play)


def test_padded_layers_beside_attention_are_left_unnamed() -> None:
    segments, truth = Theatre(Play(even=True, attention=True, counts=False)).run()
    out = find_schedule(segments)
    assert all(not s.phase and not s.label for x in out for s in x.sites)
    assert "look the same" in out[0].meta.schedule
    # the steps are found all the same
    assert [x[0] for x in found(out)[0]] == [x[0] for x in truth[0]]


def test_routers_tell_padded_experts_from_attention() -> None:
    check(Play(even=True, attention=True, counts=False, routers=True))


def test_a_routing_is_bound_to_the_group_of_its_dispatch() -> None:
    out = check(Play(stages=2, routers=True, layers=2))
    for segment in out:
        ranks = tuple(range(4)) if segment.rank < 4 else tuple(range(4, 8))
        routed = [s for s in segment.sites if s.operation == ROUTING]
        assert {segment.groups[s.group].ranks for s in routed} == {ranks}
        assert {s.label for s in routed} == {"router"}


def test_placements_follow_a_routing_to_its_group() -> None:
    segments, _ = Theatre(Play(stages=2, routers=True, layers=1)).run()
    world = tuple(range(8))
    given_rows = []
    for segment in segments:
        group = next(n for n, g in enumerate(segment.groups) if g.ranks == world)
        rows = [(group, segment.rank // 4, e, 0, e, 0) for e in range(8)]
        given_rows.append(replace(segment, placements=np.array(rows, PLACEMENT)))
    for segment in find_schedule(given_rows):
        first = segment.rank // 4 * 4
        assert segment.placements["rank"].tolist() == [first + e // 2 for e in range(8)]
        (number,) = set(segment.placements["group"].tolist())
        assert segment.groups[number].ranks == tuple(range(first, first + 4))


def test_steps_of_an_optimizer_do_not_hide_evaluations() -> None:
    """An optimizer marks its own steps: an evaluation stands in the step after it."""
    play = Play(evaluate_every=2, evaluated=2)
    theatre = Theatre(play)
    segments, truth = theatre.run()
    ends = [k != "evaluation" for k in theatre.kinds]
    number = np.cumsum([0, *ends])[:-1]  # the step in which each stands
    marked = []
    for segment in segments:
        events = segment.events.copy()
        events["iteration"] = [number[x[0]] for x in truth[segment.rank]]
        steps = np.zeros(play.steps, STEP)
        steps["iteration"], steps["loss"] = range(play.steps), np.nan
        steps["tokens"] = -1
        marked.append(
            replace(segment, events=events, steps=steps, kinds=("train",) * play.steps)
        )
    out = find_schedule(marked)
    assert found(out) == truth
    assert kinds(out)[0] == theatre.kinds
    # what a program says of its steps stays
    told = [replace(s, steps=s.steps.copy()) for s in marked]
    for segment in told:
        segment.steps["loss"] = 1.0
    out = find_schedule(told)
    assert [s.steps["loss"].tolist() for s in out] == [[1.0] * play.steps] * 4
    assert all(
        (a.events["iteration"] == b.events["iteration"]).all()
        for a, b in zip(out, told, strict=True)
    )


def test_marked_steps_are_told_by_what_they_lack() -> None:
    theatre = Theatre(Play(evaluate_every=2))
    segments, truth = theatre.run()
    last = len(theatre.kinds)
    marked = []
    for segment in segments:
        events = segment.events.copy()
        events["iteration"] = [x[0] for x in truth[segment.rank]]
        steps = np.zeros(last + 1, STEP)
        steps["iteration"], steps["loss"] = range(last + 1), 2.0
        told = ("train",) * (last + 1)
        marked.append(replace(segment, events=events, steps=steps, kinds=told))
    out = find_schedule(marked)
    assert kinds(out)[3] == [*theatre.kinds, "skipped"]
    assert found(out) == truth


def test_what_was_told_stays() -> None:
    segments, truth = Theatre(Play()).run()
    again = find_schedule(find_schedule(segments))
    assert found(again) == truth


def test_a_record_that_ends_in_a_step_does_not_say_that_it_ended() -> None:
    theatre = Theatre(Play(steps=5, warm_up=True))
    for rank in theatre.ranks:
        rank.truth.clear()
    segments, truth = theatre.run()
    cut = [replace(s, events=s.events[:-7]) for s in segments]
    out = find_schedule(cut)
    for segment in out:
        assert segment.steps["iteration"].tolist() == [0, 1, 2, 3]
        assert found(out)[segment.rank] == truth[segment.rank][:-7]


def test_ranks_that_end_apart_agree() -> None:
    segments, truth = Theatre(Play(steps=6)).run()
    cut = [replace(s, events=s.events[: len(s.events) - 40 * s.rank]) for s in segments]
    out = found(find_schedule(cut))
    for rank, mine in out.items():
        assert mine == truth[rank][: len(mine)]


@pytest.mark.parametrize("deferred", [True, False])
def test_gradients_reduced_on_the_way_back(deferred: bool) -> None:
    """DDP reduces amid the backward pass, with no_sync only in the last of a step."""
    rank = Rank(number=0, world=2)
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
    (out,) = find_schedule(rank.segments(Play()))
    assert out.events["iteration"].tolist() == [x[0] for x in rank.truth]
    assert out.kinds == ("train",) * 8


def test_a_program_without_a_backward_repeats_itself() -> None:
    rank = Rank(number=0, world=2)
    for step in range(9):
        for _ in range(4):
            rank.other("all_gather", (0, 1), step)
        rank.other("broadcast", (0, 1), step)
    (out,) = find_schedule(rank.segments(Play()))
    assert out.events["iteration"].tolist() == [x[0] for x in rank.truth]


def test_layers_alone_are_no_steps() -> None:
    """Dispatch, combine, dispatch, combine: steps or layers, nobody can tell."""
    rank = Rank(number=0, world=2)
    for call in range(40):
        there, back = ([3, call], [call, 5]), ([call, 5], [3, call])
        sent, received = back if call % 2 else there
        rank.exchange(
            (0, 1), sent, received, dtype="float32", row_bytes=64,
            label=(-1, "", -1, ""),
        )  # fmt: skip
    (out,) = find_schedule(rank.segments(Play()))
    assert (out.events["iteration"] == -1).all()
    assert len(out.steps) == 0
    assert "no step could be told" in out.meta.schedule


@pytest.mark.slow
@settings(max_examples=200)
@given(play=PLAYS)
def test_many_made_up_runs_are_found_again(play: Play) -> None:
    if play.even and not play.counts:
        play.probabilities = False
    check(play)


def test_what_was_written_before_the_first_mark_is_of_the_first_step() -> None:
    segments, truth = Theatre(Play(window=20)).run()
    marked = []
    for segment in segments:
        first = 20 * segment.index
        events = segment.events.copy()
        mine = [x[0] for x in truth[segment.rank]][first : first + 20]
        if segment.index:
            events["iteration"] = mine
        marked.append(replace(segment, events=events))
    assert truth[0][19][0] == 0  # all of the first window
    assert found(find_schedule(marked)) == truth
