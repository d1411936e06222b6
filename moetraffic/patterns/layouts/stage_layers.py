"""What the stages of a pipeline have: layers of each kind, and the model's ends.

Stages differ: dense first layers, every k-th layer with experts, layers that do not
divide evenly, embedding and head.  Bytes, parameters and time are sums over a stage's
layers and ends, so that no stage has more than one of a few, which are kept here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.patterns.model_sizes import of_each
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.values import Values

from .schedules import chunk_layers

LAYERS = ((False, False), (False, True), (True, False), (True, True))
"""Of layers: whether they have experts, whether they attend to an encoder's tokens."""


@dataclass(frozen=True, kw_only=True)
class StageLayers:
    """Stages of a pipeline, of one configuration or arrays of them.

    All arrays are ``[S, ...]`` float64: those of S stages that may have most of
    anything, the first one at 0, and the dimensions of a configuration.
    """

    counts: Float64  # [7, S, ...] layers of each of the four LAYERS, embeddings, heads,
    # and ``idle``, the same for all stages

    def layers(self, *, sparse: bool, crosses: bool) -> Float64:
        """Layers of a kind."""
        return np.asarray(self.counts[LAYERS.index((sparse, crosses))])

    @cached_property
    def dense(self) -> Float64:
        """Layers without experts."""
        return np.asarray(self.counts[0] + self.counts[1])

    @cached_property
    def sparse(self) -> Float64:
        """Layers with experts."""
        return np.asarray(self.counts[2] + self.counts[3])

    @cached_property
    def total(self) -> Float64:
        """All layers."""
        return self.dense + self.sparse

    @property
    def first(self) -> Float64:
        """1 where the model begins."""
        return np.asarray(self.counts[4])

    @property
    def last(self) -> Float64:
        """1 where the model ends."""
        return np.asarray(self.counts[5])

    @property
    def idle(self) -> Float64:
        """``[...]`` layers, in whose passes the first stage of 1F1B waits."""
        return np.asarray(self.counts[6, 0])

    @cached_property
    def inner(self) -> Float64:
        """1 of stages that have others on both sides."""
        return (1 - self.first) * (1 - self.last)

    def most(self, of: Values) -> Int64:
        """The stage ``[...]`` of which a value ``[S, ...]`` is largest."""
        return np.asarray(np.argmax(of, axis=0))

    def at(self, stage: Int64, of: Values) -> Values:
        """A value of one stage each; a value without stages as it is."""
        if np.ndim(of) < self.counts.ndim - 1:
            return of
        if len(of) == 1:
            return of[0]
        if not stage.ndim:
            return of[int(stage)]
        return np.take_along_axis(of, stage[None], axis=0)[0]


def stage_layers(
    model: ModelShape | Sequence[ModelShape], *how: Values, dimensions: int
) -> StageLayers:
    """The stages of pipelines.

    Parameters
    ----------
    model
        One, or one of each element.
    *how
        Stages, chunks of a rank, 1 where a rank holds the mirrored stage, too, and
        layers that embedding and head count as.
    dimensions
        Of the configuration.
    """
    found = of_each(_stages, model, *how)
    # stages that are everywhere as the first one are left out
    keep = (found != found[..., :1, :]).any(axis=(*range(found.ndim - 2), -1))
    keep[0] = True
    counts = np.moveaxis(found[..., keep, :], (-1, -2), (0, 1))
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
    kind = [
        LAYERS.index((model.sparse(n), model.crosses(n))) for n in range(model.layers)
    ]
    ahead = np.zeros((model.layers + 1, len(LAYERS)))
    np.cumsum(np.eye(len(LAYERS))[kind], axis=0, out=ahead[1:])
    chunks = chunk_layers(model.layers, pp, virtual, embedding, head)
    lengths = np.array([len(chunk) for chunk in chunks]).reshape(virtual, pp)
    counts = np.array([ahead[c.stop] - ahead[c.start] for c in chunks])
    counts = counts.reshape(virtual, pp, len(LAYERS)).sum(axis=0)
    ends = np.zeros((pp, 2))
    ends[0, 0] = ends[-1, 1] = 1
    every = np.concatenate([counts, ends], axis=1)
    if twice:
        every = every + every[::-1]
    sparse = every[:, 2] + every[:, 3]
    layers = every[:, : len(LAYERS)].sum(axis=1)
    middle = range(1, pp - 1)
    dense = layers - sparse
    orders = [(sparse, dense), (dense, sparse), (layers, sparse), (layers, -sparse)]
    some = [0, pp - 1]
    for one, other in orders:
        some.append(max(middle, key=lambda n: (one[n], other[n]), default=0))
    rows: list[list[float]] = []
    for row in every[some].tolist():
        rows.append(rows[0] if row in rows else row)
    # The first stage waits twice for a micro-batch to pass the others and come back:
    # the first and the last one.  Meanwhile it has p - 1 forward passes ahead, and as
    # many backward passes left: a third and two thirds of a whole pass each.
    away, own = lengths.max(axis=0)[1:].sum(), (pp - 1) * lengths.max()
    idle = max(away - own / 3, 0) + max(away - own * 2 / 3, 0)
    return np.concatenate([rows, np.full((len(rows), 1), idle)], axis=1)
