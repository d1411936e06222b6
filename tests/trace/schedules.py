"""Training programs with any order of calls, as their ranks would record them.

A program is drawn, its calls are issued in order with the autograd facts that a hook
records (sequence numbers, whether autograd records), and what each call is in truth is
kept beside them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from moetraffic.trace.merge.rank_record import STEP, RankRecord

from .conftest import Rank, inferred

WIDTH = 2
AGAIN = 1000  # added to the micro-batch of a recomputed pass
Part = tuple[str, int, int]  # "F" or "B", micro-batch and chunk, layer


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What a program does in each training step."""

    seed: int = 0
    steps: int = 4
    layers: int = 3
    micro_batches: int = 2
    order: str = "whole"  # of the passes of several micro-batches, see ``passes``
    chunks: str = ""  # two chunks of a micro-batch: "alternate" or "overlap"
    apart: bool = False  # each chunk has a loss of its own
    even: bool = False  # padded: every all-to-all sends equal parts
    tokens: int = 64
    counts: bool = False
    probabilities: bool = False
    recompute: bool = False
    first_gradient: bool = True
    evaluate: int = 0  # batches of an evaluation before every second step
    marks: str = "optimizer"  # "step", "optimizer" or "" for none
    reduces: bool = True  # gradients are reduced at a step's end
    thread: bool = False  # a thread of its own communicates
    block: str = ""  # recorded as calling: each "layer", the whole "model", or nothing


ORDERS = ("whole", "forwards", "1f1b", "dualpipe", "fine", "local", "any")


def draw(seed: int) -> Schedule:
    """Draw a program; equal seeds draw equal programs."""
    dice = random.Random(seed)

    def maybe(chance: float) -> bool:
        return dice.random() < chance

    drawn = Schedule(
        seed=seed,
        steps=dice.randint(3, 5),
        layers=dice.choice((1, 2, 3, 3, 4)),
        micro_batches=dice.choice((1, 2, 3, 4)),
        order=dice.choice(ORDERS),
        chunks=dice.choice(("", "", "", "alternate", "overlap")),
        apart=maybe(0.3),
        even=maybe(0.25),
        tokens=dice.choice((4, 64, 64, 1000)),
        counts=maybe(0.4),
        probabilities=maybe(0.2),
        recompute=maybe(0.2),
        first_gradient=maybe(0.7),
        evaluate=dice.choice((0, 0, 1, 2)),
        marks=dice.choice(("step", "optimizer", "optimizer", "")),
        reduces=maybe(0.7),
        thread=maybe(0.1),
        block=dice.choice(("layer", "layer", "model", "")),
    )
    if (drawn.order, drawn.block, drawn.recompute) == ("local", "model", True):
        # a model with a loss of each recomputed layer looks like one layer
        return replace(drawn, block="")
    return drawn


def passes(of: Schedule, dice: random.Random) -> list[Part]:
    """Return the forward and backward parts of a training step, in order."""
    ahead = range(of.layers)

    def forward(m: int) -> list[Part]:
        return [("F", m, n) for n in ahead]

    def backward(m: int) -> list[Part]:
        return [("B", m, n) for n in reversed(ahead)]

    count = of.micro_batches
    if of.order == "forwards":
        first = [p for m in range(count) for p in forward(m)]
        # one loss of all, or one after another
        every = range(count) if dice.random() < 0.5 else reversed(range(count))
        return first + [p for m in every for p in backward(m)]
    if of.order == "1f1b":
        lead = min(count, 2)
        out = [p for m in range(lead) for p in forward(m)]
        for m in range(count):
            out += backward(m)
            if m + lead < count:
                out += forward(m + lead)
        return out
    if of.order in ("dualpipe", "fine"):
        out = forward(0)
        for m in range(1, count):
            for a, b in zip(forward(m), backward(m - 1), strict=True):
                out += [a, b]
        return out + backward(count - 1)
    if of.order == "local":
        return [(d, m, n) for m in range(count) for n in ahead for d in "FB"]
    if of.order == "any":
        left = {m: forward(m) + backward(m) for m in range(count)}
        out = []
        while left:
            m = dice.choice(sorted(left))
            for _ in range(dice.choice((1, 1, of.layers))):
                if left.get(m):
                    out.append(left[m].pop(0))
            if not left[m]:
                del left[m]
        return out
    return [p for m in range(count) for p in forward(m) + backward(m)]


@dataclass
class Call:
    """What a call is in truth."""

    step: int
    kind: str
    direction: str
    phase: str
    layer: int
    label: str


@dataclass
class Play:
    """Issues the calls of a program on all its ranks."""

    of: Schedule
    ranks: list[Rank] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)  # of each rank
    kinds: list[str] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)  # iteration of each call

    def __post_init__(self) -> None:
        self.dice = random.Random(self.of.seed)
        self.noise = np.random.default_rng(self.of.seed)
        self.ranks = [Rank(number=n, world=WIDTH) for n in range(WIDTH)]
        self.sequence = 10  # autograd's next number
        self.iteration = 0
        self.memory: dict[tuple[int, int], Any] = {}
        self.blocks: dict[int, tuple[int, int]] = {}  # micro-batch and number
        # nodes that autograd makes in each stretch of a layer, the same in every layer
        self.nodes = self.dice.choice((2, 7))

    def run(self) -> None:
        for step in range(self.of.steps):
            if self.of.evaluate and step % 2:
                self.evaluate()
            self.train()
        if self.of.evaluate and self.dice.random() < 0.5:
            self.evaluate()

    def begin(self, kind: str) -> None:
        self.kinds.append(kind)

    def end(self, *, optimizer: bool) -> None:
        if self.of.marks == "step" or (self.of.marks == "optimizer" and optimizer):
            self.iteration += 1

    def evaluate(self) -> None:
        self.begin("evaluation")
        self.forget()
        for batch in range(self.of.evaluate):
            for layer in range(self.of.layers):
                self.run_forward(-1 - batch, layer, training=False)
        self.end(optimizer=False)

    def train(self) -> None:
        self.begin("train")
        self.memory.clear()
        self.forget()
        for group in self.chunked(passes(self.of, self.dice)):
            if len(group) == 1:
                self.part(group[0])
            else:
                self.together(group)
        if self.of.reduces:
            self.other("all_reduce")
        self.end(optimizer=True)

    def chunked(self, parts: list[Part]) -> Iterator[list[Part]]:
        """Split each micro-batch into two chunks that follow each other by layers."""
        if self.of.order == "fine":
            at = 0
            while at < len(parts):
                pair = parts[at : at + 2]
                apart = len(pair) == 2 and pair[0][0] == "F" and pair[1][0] == "B"
                fine = apart and pair[0][1] != pair[1][1]
                yield pair if fine else parts[at : at + 1]
                at += 2 if fine else 1
            return
        if not self.of.chunks:
            yield from ([p] for p in parts)
            return
        while parts:
            # a run of parts of one direction and micro-batch
            size = next(
                (n for n, p in enumerate(parts) if p[:2] != parts[0][:2]), len(parts)
            )
            run, parts = parts[:size], parts[size:]
            twins = [[(d, 2 * m + c, n) for c in (0, 1)] for d, m, n in run]
            if run[0][0] == "B":
                twins = [t[::-1] for t in twins]
                if self.of.apart:  # a backward of each
                    twins = [[t[c]] for c in (0, 1) for t in twins]
            for twin in twins:
                if self.of.chunks == "overlap" and len(twin) == 2:
                    yield twin
                else:
                    yield from ([p] for p in twin)

    def together(self, group: list[Part]) -> None:
        """Two parts whose first calls come before their second ones."""
        halves = [self.halves(part) for part in group]
        for _ in range(2):
            for half in halves:
                next(half, None)
        for half in halves:
            for _ in half:
                pass

    def part(self, part: Part) -> None:
        for _ in self.halves(part):
            pass

    def halves(self, part: Part) -> Iterator[None]:
        direction, m, layer = part
        if direction == "F":
            return self.forward(m, layer, "forward", training=True)
        return self.backward(m, layer)

    def run_forward(self, m: int, layer: int, *, training: bool) -> None:
        for _ in self.forward(m, layer, "forward", training=training):
            pass

    # ---- calls -------------------------------------------------------------------

    def node(self, *, training: bool) -> int:
        """The number of the node of a function; nodes of other operations precede."""
        self.sequence += self.nodes if training else 0
        self.sequence += 1
        return self.sequence - 1

    def forward(
        self, m: int, layer: int, direction: str, *, training: bool
    ) -> Iterator[None]:
        again = direction == "recompute"
        matrix = self.memory[m, layer][0] if again else self.matrix()
        links = {}
        given: tuple[int, int] = m + AGAIN if again else m, layer
        if self.of.counts:
            self.node(training=training)
            part = np.full((WIDTH, WIDTH), 2)
            self.send(
                part, direction, "", layer, "count_exchange", dtype="int64", row=8,
                link=self.sequence - 1, grad=int(training), given=given,
            )  # fmt: skip
        links["dispatch"] = self.node(training=training)
        self.send(
            matrix, direction, "dispatch", layer, link=links["dispatch"], given=given
        )
        if self.of.probabilities:
            links["probabilities"] = self.node(training=training)
            self.send(
                matrix, direction, "", layer, "companion", dtype="float32", row=4,
                link=links["probabilities"], given=given,
            )  # fmt: skip
        yield
        links["combine"] = self.node(training=training)
        self.send(
            matrix.T, direction, "combine", layer, link=links["combine"], given=given
        )
        self.node(training=training)
        if not again:
            self.memory[m, layer] = matrix, links
        yield

    def backward(self, m: int, layer: int) -> Iterator[None]:
        matrix, links = self.memory[m, layer]
        if self.of.recompute:
            for _ in self.forward(m, layer, "recompute", training=True):
                pass
            links = dict.fromkeys(links, -1)  # nodes of the second pass
        self.send(matrix, "backward", "combine_grad", layer, link=links["combine"])
        yield
        if self.of.probabilities:
            self.send(
                matrix.T, "backward", "", layer, "companion", dtype="float32",
                row=4, link=links["probabilities"],
            )  # fmt: skip
        if layer or self.of.first_gradient:
            self.send(
                matrix.T, "backward", "dispatch_grad", layer, link=links["dispatch"]
            )
        yield

    def matrix(self) -> Any:
        if self.of.even:
            return np.full((WIDTH, WIDTH), self.of.tokens // WIDTH)
        shares = self.noise.dirichlet(np.ones(WIDTH), WIDTH)
        return self.noise.multinomial(self.of.tokens, shares).reshape(WIDTH, WIDTH)

    def send(
        self,
        matrix: Any,
        direction: str,
        phase: str,
        layer: int,
        label: str = "",
        *,
        dtype: str = "bfloat16",
        row: int = 128,
        link: int = -1,
        grad: int = 0,
        given: tuple[int, int] | None = None,
    ) -> None:
        if direction == "recompute":
            link = -1
        seen = direction
        if self.of.thread:
            seen, link, grad = "", -1, 1
        block = self.calling_block(given)
        evaluates = 2 if block and given and given[0] < 0 else 0
        for rank in self.ranks:
            rank.exchange(
                tuple(range(WIDTH)), matrix[rank.number], matrix[:, rank.number],
                dtype=dtype, row_bytes=row, direction=seen, label=(0, "", -1, ""),
                link=link, grad=grad, thread=int(self.of.thread),
                module_call=block, evaluates=evaluates,
            )  # fmt: skip
        self.called(direction, phase, layer, label)

    def forget(self) -> None:
        """Inputs of another step are other tensors."""
        self.blocks = {n: (-100, number) for n, (_, number) in self.blocks.items()}

    def calling_block(self, given: tuple[int, int] | None) -> int:
        """The block that the hook would find, and the parity of its inputs."""
        if given is None or self.of.thread or not self.of.block:
            return 0
        m, layer = given
        if self.of.block == "model":
            # chunks are made within the model's call
            m, layer = (m // 2 if self.of.chunks and m >= 0 else m), 0
        last, number = self.blocks.get(layer, (None, 2 * layer + 2))
        if last != m:
            number ^= 1
        self.blocks[layer] = m, number
        return number

    def other(self, operation: str) -> None:
        for rank in self.ranks:
            rank.other(operation, tuple(range(WIDTH)), 0)
        self.called("forward", "", -1, "")

    def called(self, direction: str, phase: str, layer: int, label: str) -> None:
        step, kind = len(self.kinds) - 1, self.kinds[-1]
        self.calls.append(Call(step, kind, direction, phase, layer, label))
        self.marked.append(self.iteration)

    def records(self) -> list[RankRecord]:
        """The records, with the marks of the steps that the program sets."""
        made = [rank.record() for rank in self.ranks]
        if not self.of.marks:
            return made
        count = len(self.kinds)
        if self.of.marks == "optimizer":
            count = self.kinds.count("train")
        steps = np.zeros(count, STEP)
        steps["iteration"], steps["kind"] = range(count), "train"
        steps["loss"], steps["tokens"] = np.nan, -1
        if self.of.marks == "step":
            steps["loss"] = 1.0
        for record in made:
            record.calls["iteration"] = self.marked
        return [replace(record, steps=steps) for record in made]


@dataclass
class Judgment:
    """Wrong and unnamed names of the calls of a program, by what is named."""

    wrong: Counter[str] = field(default_factory=Counter)
    unnamed: Counter[str] = field(default_factory=Counter)
    every: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)  # the first wrong ones

    def add(self, what: str, found: Any, true: Any, unknown: Any, where: str) -> None:
        self.every[what] += 1
        if found == unknown and true != unknown:
            self.unnamed[what] += 1
        elif found != true:
            self.wrong[what] += 1
            self.first.append(f"{where}: {what} {found!r} for {true!r}")


def judge(of: Schedule) -> Judgment:
    """Compare what is inferred of a program with what it did."""
    play = Play(of)
    play.run()
    judgment = Judgment()
    for record in inferred(play.records()):
        steps = true_steps(play, record)
        columns = (record.steps[name].tolist() for name in ("iteration", "kind"))
        kind_of = dict(zip(*columns, strict=True))
        for at, (row, call) in enumerate(zip(record.calls, play.calls, strict=True)):
            site = record.sites[row["site"]]
            where = f"rank {record.rank} call {at} {call}"
            step = int(row["iteration"])
            if steps is not None:
                judgment.add("step", step, steps[at], -1, where)
                if step in kind_of:
                    judgment.add("kind", kind_of[step], call.kind, "", where)
            if site.operation != "all_to_all":
                continue
            judgment.add("phase", site.phase, call.phase, "", where)
            judgment.add("layer", site.layer, call.layer, -1, where)
            judgment.add("label", site.label, call.label, "", where)
            judgment.add("direction", site.direction, call.direction, "", where)
    return judgment


def true_steps(play: Play, record: RankRecord) -> list[int] | None:
    """The steps of all calls; None where an evaluation is part of a marked step.

    An optimizer marks the step after an evaluation: that both are then one step was
    recorded, and is not inferred.
    """
    found = record.calls["iteration"].tolist()
    if play.of.marks and found == play.marked:
        return None
    return [call.step for call in play.calls]
