"""Pipelines: the passes of a stage in order, and the layers that stages have.

A pass is of one micro-batch through one *chunk* of layers; with v virtual stages a rank
has v chunks, and chunk c of stage s is number ``c p + s`` of the whole pipeline.

ZB-H1 (Qi et al., arXiv 2401.10241) computes gradients of weights later than those of
inputs, which are what is handed on, in 1F1B's order of passes.  DualPipe (DeepSeek-V3,
arXiv 2412.19437, section 3.2.1) feeds micro-batches from both ends: a rank has the
layers of its own place (chunk 0) and of the mirrored one (chunk 1).

Stages differ: dense first layers, every k-th layer with experts, layers that do not
divide evenly, embedding and head.  Bytes, parameters and time are sums over a stage's
layers and ends, so that no stage has more than one of a few, which are kept here.

References
----------
Narayanan et al., arXiv 2104.04473, sections 2.2.1 (1F1B, PipeDream-Flush) and 2.2.2
(interleaved); Megatron-LM, ``core/pipeline_parallel/schedules.py``; torch,
``distributed/pipelining/schedules.py`` has the same orders; deepseek-ai/DualPipe,
``dualpipe.py``: the eight steps of ``DualPipe.step``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.workload.model import ModelShape
from moetraffic.workload.rules import Values
from moetraffic.workload.sizes import of_each

LAYERS = ((False, False), (False, True), (True, False), (True, True))
"""Of layers: whether they have experts, whether they attend to an encoder's tokens."""


class Pass(NamedTuple):
    """A forward or backward pass of one micro-batch through one chunk."""

    backward: bool
    micro_batch: int
    chunk: int = 0


def passes(
    stage: int,
    stages: int,
    micro_batches: int,
    virtual: int = 1,
    schedule: str = "1f1b",
) -> list[Pass]:
    """The passes of a stage, in order, of a layout that can be.

    Parameters
    ----------
    stage, stages
        This stage, and how many there are p.
    micro_batches
        Of an iteration m.
    virtual
        Chunks of a rank v; 1: the 1F1B schedule.
    schedule
        One of :data:`~moetraffic.patterns.layout.SCHEDULES`.

    Examples
    --------
    >>> "".join("B" if p.backward else "F" for p in passes(0, 2, 3))
    'FFBFBB'
    """
    if schedule == "dualpipe":
        return _from_both_ends(stage, stages, micro_batches // 2)
    if stages == 1:
        return [Pass(b, i) for i in range(micro_batches) for b in (False, True)]

    def chunk_pass(n: int, backward: bool) -> Pass:
        """The n-th of its direction: p micro-batches of a chunk, then of the next."""
        round_, place = divmod(n, stages * virtual)
        chunk, within = divmod(place, stages)
        if virtual == 1:
            return Pass(backward, n)
        chunk = virtual - 1 - chunk if backward else chunk
        return Pass(backward, round_ * stages + within, chunk)

    total, ahead = micro_batches * virtual, stages - stage - 1
    warm_up = ahead if virtual == 1 else 2 * ahead + (virtual - 1) * stages
    warm_up = min(warm_up, total)
    order = [chunk_pass(n, False) for n in range(warm_up)]
    for n in range(total - warm_up):
        order += [chunk_pass(warm_up + n, False), chunk_pass(n, True)]
    return order + [chunk_pass(n, True) for n in range(total - warm_up, total)]


def _from_both_ends(stage: int, stages: int, each: int) -> list[Pass]:
    """DualPipe's passes, with ``each`` micro-batches from either end."""
    near = min(stage, stages - 1 - stage)  # to an end
    ahead = stages // 2 - near - 1
    order = "F" * (2 * ahead)
    order += "Ff" * (near + 1)
    order += "bf" * ahead
    order += "FbfB" * (each - stages + near + 1)
    order += "bfB" * ahead
    order += "bB" * (near + 1)
    order += "B" * ahead
    # large letters are the direction that enters at the near end
    sequence, counts = [], dict.fromkeys("FfBb", 0)
    for letter in order:
        chunk = int(letter.islower()) ^ int(stage >= stages // 2)
        micro_batch = chunk * each + counts[letter]
        sequence.append(Pass(letter in "Bb", micro_batch, chunk))
        counts[letter] += 1
    return sequence


def handed_on(
    one: Pass, stage: int, stages: int, virtual: int = 1, schedule: str = "1f1b"
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """What a pass waits for and what it hands on, as (source, destination) stages.

    Activations go to the next chunk of the pipeline, gradients to the one before; the
    last stage's next chunk is on the first stage, the wrap-around of an interleaved
    schedule.  None where the model begins or ends.
    """
    if schedule == "dualpipe" and one.chunk:  # the mirrored pipeline
        mirrored = handed_on(one._replace(chunk=0), stages - 1 - stage, stages)
        before, behind = (
            pair and (stages - 1 - pair[0], stages - 1 - pair[1]) for pair in mirrored
        )
        return before, behind
    place, last = one.chunk * stages + stage, stages * virtual - 1
    step = -1 if one.backward else 1
    source, destination = place - step, place + step
    before = (source % stages, stage) if 0 <= source <= last else None
    behind = (stage, destination % stages) if 0 <= destination <= last else None
    return before, behind


def chunk_layers(
    layers: int, stages: int, virtual: int = 1, embedding: int = 0, head: int = 0
) -> tuple[range, ...]:
    """Global layers of each chunk of the pipeline, the first ones get what is over.

    Embedding and head count as so many layers of the first and the last chunk
    (Megatron-LM, ``account_for_embedding_in_pipeline_split``; torchtitan,
    ``generate_llm_fqn_per_model_part``).

    Examples
    --------
    >>> [len(chunk) for chunk in chunk_layers(6, 4, 2, embedding=1, head=1)]
    [0, 1, 1, 1, 1, 1, 1, 0]
    """
    parts = stages * virtual
    each, over = divmod(embedding + layers + head, parts)
    begins = [n * each + min(n, over) - embedding for n in range(parts + 1)]
    inside = [min(max(begin, 0), layers) for begin in begins]
    return tuple(map(range, inside[:-1], inside[1:]))


@dataclass(frozen=True, kw_only=True)
class StageLayers:
    """Stages of a pipeline that may have most of anything, the first one at 0.

    ``counts`` ``[7, S, ...]`` float64 are layers of each of the four LAYERS,
    embeddings, heads, and layers in whose passes the first stage of 1F1B waits, of S
    stages, with the dimensions of a layout.
    """

    counts: Float64

    def layers(self, *, sparse: bool, crosses: bool) -> Float64:
        """Layers ``[S, ...]`` of a kind."""
        return np.asarray(self.counts[LAYERS.index((sparse, crosses))])

    @cached_property
    def dense(self) -> Float64:
        """Layers ``[S, ...]`` without experts."""
        return np.asarray(self.counts[0] + self.counts[1])

    @cached_property
    def sparse(self) -> Float64:
        """Layers ``[S, ...]`` with experts."""
        return np.asarray(self.counts[2] + self.counts[3])

    @cached_property
    def total(self) -> Float64:
        """All layers ``[S, ...]``."""
        return self.dense + self.sparse

    @property
    def first(self) -> Float64:
        """1 ``[S, ...]`` where the model begins."""
        return np.asarray(self.counts[4])

    @property
    def last(self) -> Float64:
        """1 ``[S, ...]`` where the model ends."""
        return np.asarray(self.counts[5])

    @property
    def idle(self) -> Float64:
        """Layers ``[...]`` in whose passes the first stage of 1F1B waits."""
        return np.asarray(self.counts[6, 0])

    @cached_property
    def inner(self) -> Float64:
        """1 ``[S, ...]`` of stages that have others on both sides."""
        return (1 - self.first) * (1 - self.last)

    def most(self, of: Values) -> Int64:
        """The stage ``[...]`` of which a value ``[S, ...]`` is largest."""
        return np.asarray(np.argmax(of, axis=0))

    def at(self, stage: Int64, of: Values) -> Values:
        """A value of one stage each; a value without stages as it is."""
        if np.ndim(of) < self.counts.ndim - 1:
            return of
        return np.take_along_axis(of, stage[None] % len(of), axis=0)[0]


def stage_layers(
    model: ModelShape | Sequence[ModelShape], *how: Values, dimensions: int
) -> StageLayers:
    """The stages of pipelines of one model, or of one of each element.

    ``how``: stages, chunks of a rank, 1 where a rank holds the mirrored stage, too,
    and layers that embedding and head count as; ``dimensions``: of the layout.
    """
    counts = of_each(_stages, model, *how)
    # stages that are everywhere as the first one are left out
    keep = (counts != counts[..., :1, :]).any(axis=(*range(counts.ndim - 2), -1))
    keep[0] = True
    counts = np.moveaxis(counts[..., keep, :], (-1, -2), (0, 1))
    ones = [1] * (dimensions - (counts.ndim - 2))
    return StageLayers(
        counts=counts.reshape(*counts.shape[:2], *ones, *counts.shape[2:])
    )


@cache
def _stages(
    model: ModelShape, pp: int, virtual: int, twice: bool, embedding: int, head: int
) -> Float64:
    """Those that may have most ``[6, 7]``: the first and the last one and, of others,
    those with most layers of either kind, and most layers with many or few of one.

    Others differ by one layer at most, so that any sum over their layers is largest in
    one of these.  A stage that repeats another is as the first one.
    """
    if not 1 <= pp * virtual <= embedding + model.layers + head:
        pp = virtual = 1  # no such pipeline
    kinds = [
        LAYERS.index((model.sparse(n), model.crosses(n))) for n in range(model.layers)
    ]
    ahead = np.zeros((model.layers + 1, len(LAYERS)))
    np.cumsum(np.eye(len(LAYERS))[kinds], axis=0, out=ahead[1:])
    chunks = chunk_layers(model.layers, pp, virtual, embedding, head)
    lengths = np.array([len(chunk) for chunk in chunks]).reshape(virtual, pp)
    counts = np.array([ahead[c.stop] - ahead[c.start] for c in chunks])
    counts = counts.reshape(virtual, pp, len(LAYERS)).sum(axis=0)
    ends = np.zeros((pp, 2))
    ends[0, 0] = ends[-1, 1] = 1
    stages = np.concatenate([counts, ends], axis=1)
    if twice:
        stages = stages + stages[::-1]
    sparse = stages[:, 2] + stages[:, 3]
    layers = stages[:, : len(LAYERS)].sum(axis=1)
    dense = layers - sparse
    some = [0, pp - 1]
    for first, then in (
        *((sparse, dense), (dense, sparse), (layers, sparse), (layers, -sparse)),
    ):
        middle = range(1, pp - 1)
        some.append(max(middle, key=lambda n: (first[n], then[n]), default=0))
    rows: list[list[float]] = []
    for row in stages[some].tolist():
        rows.append(rows[0] if row in rows else row)
    # The first stage waits twice for a micro-batch to pass the others and come back:
    # the first and the last one.  Meanwhile it has p - 1 forward passes ahead, and as
    # many backward passes left: a third and two thirds of a whole pass each.
    away, own = lengths.max(axis=0)[1:].sum(), (pp - 1) * lengths.max()
    idle = max(away - own / 3, 0) + max(away - own * 2 / 3, 0)
    return np.concatenate([rows, np.full((len(rows), 1), idle)], axis=1)
