"""A small trace in memory with all that one can hold, and runs that never were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from moetraffic.trace import (
    PHASES,
    UNKNOWN_TIME,
    DroppedForm,
    Group,
    Meta,
    Occurrences,
    Site,
    Source,
    Steps,
    Trace,
)
from moetraffic.trace.inference.inference import infer_schedule
from moetraffic.trace.merge.rank_record import (
    CALL,
    STEP,
    CallingModule,
    RankRecord,
    Record,
    join_ranks,
    narrow,
)
from moetraffic.trace.model import ALL_TO_ALL, CLOCK, PLACEMENT, ROUTING
from moetraffic.trace.panel import ArrayPanel

ITERATIONS, LAYERS, RANKS, EXPERTS, ROW = 40, 2, 4, 8, 512


def make_trace(seed: int = 0, *, missing: tuple[int, int] | None = None) -> Trace:
    """Two layers over one group of 4; a stored all-gather on a group of 2.

    ``missing`` (iteration, rank): that rank's records from then on are absent.
    """
    rng = np.random.default_rng(seed)
    groups = [
        Group(kind="ep", ranks=(0, 1, 2, 3)),
        Group(kind="dp", ranks=(0, 2)),
    ]
    sites: list[Site] = []
    for layer in range(LAYERS):
        sites.append(
            Site(
                group=0,
                operation="routing",
                layer=layer,
                experts=EXPERTS,
                dropped=DroppedForm.STORED if layer else DroppedForm.NONE,
            )
        )
        sites += [
            Site(
                group=0,
                operation="all_to_all",
                phase=phase,
                layer=layer,
                direction="backward" if "grad" in phase else "forward",
                dtype="float32",
                row_bytes=ROW,
            )
            for phase in PHASES
        ]
    sites.append(
        Site(
            group=1,
            operation="all_reduce",
            label="gradient_sync",
            dtype="float32",
            row_bytes=4,
        )
    )
    sites.append(Site(group=1, operation="all_gather"))
    sites.append(Site(group=0, operation="all_to_all"))
    count, routings = len(sites), [0, 5]
    iteration = np.tile(np.arange(ITERATIONS), count)
    site = np.repeat(np.arange(count), ITERATIONS)
    demand = rng.multinomial(64, rng.dirichlet(np.ones(EXPERTS), (80, RANKS)))
    dropped = demand // 8 * (np.arange(80) >= ITERATIONS)[:, None, None]
    sent = (demand - dropped).reshape(80, 4, 4, 2).sum(axis=3) * ROW
    other = rng.integers(0, 1 << 40, (ITERATIONS, 4, 4))
    volumes = rng.integers(0, 1 << 40, (ITERATIONS, 2))
    matrix = iteration + np.where(site >= 5, ITERATIONS, 0)
    matrix[np.isin(site, routings)] = -1
    matrix[site == count - 3] = ITERATIONS  # the same in all calls
    matrix[site == count - 2] = np.arange(ITERATIONS)
    matrix[site == count - 1] = 80 + np.arange(ITERATIONS)
    phase = np.array([s.phase for s in sites])[site]
    panels = {
        "routing_4x8/demand": ArrayPanel(demand.astype(np.int32)),
        "routing_4x8/dropped": ArrayPanel(dropped.astype(np.int32)),
        "call_2/volume": ArrayPanel(np.concatenate([volumes, [[4096, 4096]]])),
        "call_4/wire": ArrayPanel(np.concatenate([sent, other])),
    }
    small = np.isin(site, (count - 3, count - 2))
    routed = np.isin(site, routings)
    for table, of in (
        ("routing_4x8", routed),
        ("call_4", ~routed & ~small),
        ("call_2", small),
    ):
        rows, width = int(of.sum()), 2 if table == "call_2" else 4
        issue = np.sort(rng.integers(0, 1 << 40, (rows, width)), axis=0)
        panels[f"{table}/issue"] = ArrayPanel(issue)
        if table != "routing_4x8":
            panels[f"{table}/start"] = ArrayPanel(np.full_like(issue, UNKNOWN_TIME))
            panels[f"{table}/end"] = ArrayPanel(issue + 1000)
        present = np.ones((rows, width), np.uint8)
        if missing and width == 4:
            present[iteration[of] >= missing[0], missing[1]] = 0
        panels[f"{table}/present"] = ArrayPanel(present)
    placements = np.zeros(LAYERS * EXPERTS, PLACEMENT)
    placements["layer"] = np.repeat(range(LAYERS), EXPERTS)
    placements["expert"] = np.tile(range(EXPERTS), LAYERS)
    placements["rank"] = placements["expert"] // 2
    shape = (ITERATIONS, RANKS)
    return Trace(
        meta=Meta(world=RANKS, ep=4, dp=4, experts=EXPERTS, model="größe"),
        groups=groups,
        sites=[replace(s, source=Source.ANNOTATED) for s in sites],
        occurrences=Occurrences(
            iteration=iteration,
            site=site.astype(np.int32),
            sequence=np.where(routed, -1, iteration),
            matrix=matrix,
            transposed=np.isin(phase, ("combine", "dispatch_grad")),
        ),
        panels=panels,
        steps=Steps(
            iteration=np.arange(ITERATIONS),
            kind=("train",) * (ITERATIONS - 1) + ("evaluation",),
            loss=rng.random(shape),
            tokens=np.full(shape, 64),
            start=np.zeros(shape, np.int64),
            end=np.ones(shape, np.int64),
            source=np.full(ITERATIONS, Source.ANNOTATED, np.uint8),
        ),
        placements=placements,
        clocks=np.array(
            [(1, 10, 5, 2), (1, 30, 25, 2), (2, 10, 0, 2), (3, 10, 0, 2)], CLOCK
        ),
    )


def as_ranks(record: Record) -> list[RankRecord]:
    """The records of all ranks, with common iterations, sites, steps and placements."""
    made = []
    for number, rank in record.ranks.items():
        joined = record.calls[record.calls_of[number]]
        ended = record.steps[record.steps["rank"] == number]
        used, local = np.unique(joined["site"], return_inverse=True)
        calls, steps = np.zeros(len(joined), CALL), np.zeros(len(ended), STEP)
        for name in CALL.names or ():
            calls[name] = joined[name]
        calls["site"] = local
        for name in STEP.names or ():
            steps[name] = ended[name]
        members = [number in record.groups[g].ranks for g in record.placements["group"]]
        made.append(
            replace(
                rank,
                meta=record.meta,
                groups=record.groups,
                group_names=(),
                sites=tuple(record.sites[n] for n in used.tolist()),
                calls=calls,
                steps=steps,
                placements=record.placements[members],
            )
        )
    return made


def inferred(records: list[RankRecord]) -> list[RankRecord]:
    """Records with the steps, layers and phases that are inferred from them."""
    return as_ranks(infer_schedule(join_ranks(records)))


@pytest.fixture
def trace() -> Trace:
    return make_trace()


@pytest.fixture
def ragged() -> Trace:
    """Rank 2's records end before iteration 30."""
    return make_trace(missing=(30, 2))


def modules(calls: Any) -> tuple[CallingModule, ...]:
    """The modules of the model that the calls name by number."""
    return tuple(
        CallingModule(name=f"layers.{number}", model=0, order=(0, number))
        for number in range(int(calls["module_call"].max(initial=0)) >> 1)
    )


Label = tuple[int, str, int, str]  # iteration, phase, layer, label
HIDDEN = 64
ATTENTION = 50  # number of its module
FACTS = ("link", "grad", "thread", "module_call", "evaluates")


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
    warm_up: bool = False
    setup: bool = False  # neighboring stages connect in both directions first
    trailing: bool = False  # parameters are gathered at a step's end
    links: bool = True
    told_layers: bool = False
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

    def call(
        self,
        site: Site,
        payload: int,
        label: Label,
        *,
        link: int = -1,
        grad: int = 0,
        thread: int = 0,
        module_call: int = 0,
        evaluates: int = 0,
    ) -> None:
        number = self.sites.setdefault(site, len(self.sites))
        count = -1
        if site.operation != ROUTING and site.peers == (-1, -1):
            count = self.sequence.get(site.group, 0)
            self.sequence[site.group] = count + 1
        now = 1000 * len(self.rows)
        times = now, UNKNOWN_TIME, now + 500
        row = (label[0], number, count, *times, payload, link, grad, thread)
        row += (module_call, evaluates)
        self.rows.append(row)
        self.truth.append(label)

    def exchange(
        self, ranks: tuple[int, ...], sent: Any, received: Any, **told: Any
    ) -> None:
        facts = {k: told.pop(k) for k in FACTS if k in told}
        label = told.pop("label")
        rows = self.splits.setdefault(len(ranks), [])
        row = told["row_bytes"]
        rows.append((np.asarray(sent) * row, np.asarray(received) * row))
        site = Site(group=self.group(ranks), operation=ALL_TO_ALL, **told)
        self.call(site, len(rows) - 1, label, **facts)

    def other(self, operation: str, ranks: tuple[int, ...], iteration: int) -> None:
        site = Site(
            group=self.group(ranks), operation=operation, dtype="float32", row_bytes=4
        )
        self.call(site, 4096, (iteration, "", -1, ""))

    def record(self) -> RankRecord:
        """The record, without iterations and steps."""
        calls = np.zeros(len(self.rows), CALL)
        times = ("issue", "start", "end")
        names = ("site", "sequence", *times, "payload", *FACTS)
        for column, name in enumerate(names):
            calls[name] = [row[column + 1] for row in self.rows]
        calls["iteration"] = -1
        return RankRecord(
            rank=self.number,
            node="node",
            meta=Meta(world=self.world),
            groups=tuple(self.groups),
            sites=tuple(self.sites),
            modules=modules(calls),
            calls=calls,
            steps=np.zeros(0, STEP),
            splits={
                w: narrow(np.array(rows, np.int64).reshape(-1, 2, w))
                for w, rows in self.splits.items()
            },
            demand={8: narrow(np.array(self.demand, np.int64).reshape(-1, 2, 8))},
        )


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
        self.calls = Counter[int]()  # by layer
        self.evaluates = False

    def run(self) -> tuple[list[RankRecord], dict[int, list[Label]]]:
        play = self.play
        for rank in self.ranks:
            if play.warm_up:
                rank.other("broadcast", self.everyone, 0)
                rank.other("barrier", self.everyone, 0)
        self.iteration = 0
        for stage in range(play.stages if play.setup else 0):
            near = [(stage - 1, stage), (stage, stage + 1)]
            ahead = [(a, b) for a, b in near if a >= 0 and b < play.stages]
            both = [*ahead, *((b, a) for a, b in ahead)]
            for source, destination in self.rng.permutation(both).tolist():
                self.between(source, destination, stage, dtype="int32")
        self.iteration = -1
        for step in range(play.steps):
            if play.evaluate_every and step % play.evaluate_every == 1:
                self.evaluate()
            self.train()
        if play.evaluate_every:
            self.evaluate()
        records = [rank.record() for rank in self.ranks]
        return records, {r.number: r.truth for r in self.ranks}

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
        self.evaluates = True
        for _ in range(self.play.evaluated):
            self.forward(0, {})
        self.evaluates = False
        if self.play.evaluated_loss:
            for rank in self.ranks:
                rank.other("all_gather", self.everyone, self.iteration)

    def train(self) -> None:
        self.begin("train")
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
            if play.trailing:
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

    def between(
        self, source: int, destination: int, mine: int, dtype: str = "float32"
    ) -> None:
        for rank in self.ranks[mine * self.width : (mine + 1) * self.width]:
            column = rank.number % self.width
            ranks = tuple(s * self.width + column for s in range(self.play.stages))
            site = Site(
                group=rank.group(ranks, "pp"),
                operation="send_recv",
                peers=(source, destination),
                dtype=dtype,
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
        called = direction != "backward"  # by a module of the model
        module = layer + 1 if layer >= 0 else ATTENTION
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
                module_call=2 * module + self.calls[layer] % 2 if called else 0,
                evaluates=2 if self.evaluates else 0,
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
        self.calls[-1] += 1
        for _ in range(4):
            self.send(stage, even, ("", -1, ""), "bfloat16", 4096, direction)

    def forward(self, stage: int, memory: dict[int, Any]) -> None:
        for at in range(self.play.layers):
            if self.play.attention:
                self.attend(stage, "forward")
            memory[at] = self.layer(stage, at, self.matrix(), "forward")

    def layer(self, stage: int, at: int, matrix: Any, direction: str) -> Any:
        play, layer = self.play, stage * self.play.layers + at
        self.calls[layer] += 1
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
            name = ("", layer, "companion")
            self.send(stage, matrix, name, "float32", 4, direction, links[1])
        if play.scales:
            name = ("", layer, "companion")
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
                name = ("", layer, "companion")
                self.send(stage, matrix.T, name, "float32", 4, "backward", links[1])
            if layer or play.first_gradient:
                name = ("dispatch_grad", layer, "")
                self.send(stage, matrix.T, name, "bfloat16", 128, "backward", links[0])
            if play.attention:
                self.attend(stage, "backward")


@pytest.fixture(scope="session")
def theatre() -> Callable[..., Theatre]:
    """``theatre(layers=3, ...)``: a made-up run, see :class:`Play`."""
    return lambda **told: Theatre(Play(**told))


@pytest.fixture
def record() -> Rank:
    """The empty record of rank 0 of 2."""
    return Rank(number=0, world=2)
