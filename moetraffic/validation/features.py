r"""Permutation-invariant features: statistics of a run independent of expert numbering.

Experts of runs with different seeds do not correspond by index.  Every statistic here
is therefore invariant under permutations of the experts of a layer (line efficiency and
inter-host share depend on the placement on ranks and change by chance alone).

Notation: ``n[t, l, r, e]`` token copies, T iterations, L layers, R ranks, E experts.
Load ``p[t, l, e]``: the share of the layer's copies that expert e gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from moetraffic.analysis.kernels import matrix_statistics
from moetraffic.analysis.measures import (
    entropy,
    means_of_known,
    ratio,
    total_variation,
)
from moetraffic.analysis.network import inter_host_share
from moetraffic.arrays import Float64, Int64, Integer
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

from .routing_counts import placed_counts, routing_counts

LAGS = (1, 5, 20)
"""Lags in iterations of the change of the load."""

COPIES = "token copies of a rank in a layer (k x tokens)"

CELLS = 1 << 21
"""Maximum token counts processed at a time."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """Permutation-invariant features of a run (T iterations, L layers, E experts)."""

    name: str
    layers: tuple[int, ...]  # L global layers
    shape: tuple[int, int]  # R, E
    tokens: int  # copies of a layer and iteration, the median
    load: Float64  # [T, L, E] shares of experts, in the run's own order
    series: dict[str, Float64]  # [T, L] each, by the names in SERIES
    size: dict[str, int]  # what runs must have in common, by name; 0: unknown

    @property
    def ordered(self) -> Float64:
        """Expert shares sorted in decreasing order, ``[T, L, E]``."""
        return np.asarray(-np.sort(-self.load, axis=2), np.float64)

    def part(self, span: range) -> Features:
        """Return the features of a range of iterations."""
        cut = slice(span.start, span.stop)
        return replace(
            self,
            load=self.load[cut],
            series={name: values[cut] for name, values in self.series.items()},
        )


SERIES = {
    "entropy": "normalized entropy of the load over experts",
    "max over mean": "busiest expert's load over the mean",
    "line efficiency": "line efficiency of the matrix between ranks",
    "inter-host share": "share of the copies between ranks that leave the host",
    "row dispersion": "log of the rows' chi-squared over its degrees of freedom",
    "row entropy spread": "standard deviation over ranks of the rows' entropy",
    "row spectrum": "participation ratio of the rows' squared singular values",
    "empty cells": "share of pairs of a rank and an expert without a copy, less that of"
    " multinomial rows",
    "row persistence": "correlation of the rows with the iteration before",
    "row coupling": "correlation of the ranks' similarity with other layers'",
    "sampling noise": "expected total variation of two multinomial draws of the load",
    **{
        f"change over {lag}": f"total variation of the load over {lag} iterations"
        for lag in LAGS
    },
}
"""Statistics per iteration and layer, with descriptions.  Rows are the ranks' shares of
experts less the load; the change over h is unknown (NaN) in the first h iterations, row
coupling in a run of one layer."""


def trace_features(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
    ranks_a_host: int | None = None,
) -> Features:
    """Compute permutation-invariant features of a trace.

    Parameters
    ----------
    trace
        Trace with the routing of every rank.
    layers, iterations
        None: all.  Micro-batches of an iteration are summed.
    ranks_a_host
        Neighbors that share a host, for the inter-host share; None: a half of the
        expert-parallel ranks.  The nodes that a run was captured on do not matter.

    Raises
    ------
    AnalysisError, TraceError
        If the trace does not hold the routing of all its ranks in common iterations.
    """
    run = routing_counts(trace, layers=layers, iterations=iterations)
    return count_features(
        run.counts,
        name=trace.name,
        layers=run.layers,
        holder=run.holder,
        width=run.width,
        ranks_a_host=ranks_a_host,
        k=run.k,
    )


def count_features(
    counts: Integer,
    *,
    name: str = "counts",
    layers: Sequence[int] | None = None,
    holder: Int64 | None = None,
    width: int | None = None,
    ranks_a_host: int | None = None,
    k: int = 0,
) -> Features:
    """Compute permutation-invariant features of token counts.

    Parameters
    ----------
    counts
        ``[T, L, R, E]`` token copies that a rank routes to an expert.
    name, layers
        Of the run; None: layers 0 ... L-1.
    holder
        ``[L, E]`` which rank of its group holds each expert; None: contiguous.
    width
        W, consecutive ranks of an expert-parallel group; None: all R.
    ranks_a_host
        As in :func:`trace_features`.
    k
        Experts of a token; 0: unknown.

    Raises
    ------
    AnalysisError
        If the counts are not of that shape, or a host has no rank.
    """
    n, held, group = placed_counts(counts, holder, width)
    total, depth, ranks, experts = n.shape
    a_host = max(1, group // 2) if ranks_a_host is None else ranks_a_host
    if a_host < 1:
        raise AnalysisError(
            f"a host has at least 1 rank, but ranks per host are {a_host}: give an "
            "integer from 1 on"
        )
    hosts = np.arange(group) // a_host
    at_once = max(1, CELLS // (depth * ranks * max(ranks, experts)))
    earlier = np.concatenate((n[1:2], n[:-1]))  # persistence is symmetric
    parts = [
        _of_window(n[at : at + at_once], earlier[at : at + at_once], held, hosts)
        for at in range(0, total, at_once)
    ]
    found = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    load, copies = (found.pop(key) for key in ("load", "copies"))
    tokens = int(np.median(copies))
    found |= changes(load)
    return Features(
        name=name,
        layers=tuple(range(depth) if layers is None else layers),
        shape=(ranks, experts),
        tokens=tokens,
        load=load,
        series={name: found[name] for name in SERIES},
        size={
            "EP": max(len(np.unique(each)) for each in held),
            "ranks of a group": group,
            "ranks": ranks,
            "layers": depth,
            "experts": experts,
            "k": k,
            COPIES: tokens // ranks,
        },
    )


def sampling_noise(load: Float64, copies: Float64 | float) -> Float64:
    r"""Compute the expected change of a constant load by sampling noise alone, [T, L].

    .. math:: E \frac12 \sum_e |\hat p_e - \hat p_e'| \approx \sum_e
              \sqrt{p_e (1 - p_e) / (\pi N)}

    of two multinomial draws of N copies, by the normal approximation.
    """
    deviation = np.sqrt(load * (1 - load)).sum(axis=2)
    return np.asarray(deviation / np.sqrt(np.pi * np.maximum(copies, 1)), np.float64)


def changes(load: Float64) -> dict[str, Float64]:
    """Total variation of the load ``[T, L, E]`` over each of LAGS, ``[T, L]``."""
    found = {}
    for lag in LAGS:
        moved = np.full(load.shape[:2], np.nan)
        moved[lag:] = total_variation(load[lag:], load[:-lag])
        found[f"change over {lag}"] = moved
    return found


def _of_window(
    counts: Integer, before: Integer, holder: Int64, hosts: Int64
) -> dict[str, Float64]:
    """Compute the statistics of a window that depend on one or two iterations alone.

    ``before`` holds the iteration before each.
    """
    total = counts.sum(axis=2)
    copies = total.sum(axis=-1, dtype=np.float64)
    load = total / np.maximum(copies, 1)[..., None]
    wire = _between_ranks(counts, holder, len(hosts))
    flat = wire.reshape(-1, len(hosts), len(hosts))
    efficiency = matrix_statistics(flat, diagonal=False)["line_efficiency"]
    return {
        "load": load,
        "copies": copies,
        "entropy": entropy(load),
        "max over mean": load.max(axis=2) * load.shape[2],
        "sampling noise": sampling_noise(load, copies),
        "line efficiency": means_of_known(efficiency.reshape(wire.shape[:3])),
        "inter-host share": means_of_known(inter_host_share(wire, hosts)),
        **_rows(counts, before, load),
    }


def _between_ranks(counts: Integer, holder: Int64, width: int) -> Int64:
    """Compute token copies between the ranks of each group, ``[T, L, G, W, W]``."""
    total, depth, ranks, _ = counts.shape
    held = holder[..., None] == np.arange(width)  # [L, E, W]
    out = np.asarray(counts @ held, np.int64)
    return out.reshape(total, depth, ranks // width, width, width)


def _rows(counts: Integer, before: Integer, load: Float64) -> dict[str, Float64]:
    r"""Compute statistics of the ranks' rows, ``[T, L]`` each.

    x is a rank's shares of experts less the load, ``G = x x'`` of an iteration and
    layer.  Dispersion: :math:`\log \chi^2/((R-1)(E-1))` of the rows against the load,
    0 where each rank draws copies from the same shares.  Spectrum: :math:`(tr G)^2 /
    tr G^2`.  Persistence: correlation of x with that of the iteration before.
    Coupling: correlation over pairs of ranks of G in two layers (are ranks that are
    similar in one layer similar in another?), mean over the other layers.
    """
    ranks, experts = counts.shape[2:]
    rows = counts.sum(axis=3, keepdims=True)
    expected = rows * load[:, :, None]
    empty = (counts == 0) - (1 - load[:, :, None]) ** rows
    squared = np.zeros_like(expected)
    np.divide((counts - expected) ** 2, expected, out=squared, where=expected > 0)
    dispersion = squared.sum(axis=(2, 3)) / max(1, (ranks - 1) * (experts - 1))
    shares = counts / np.maximum(rows, 1)
    x, previous = (
        each - each.mean(axis=2, keepdims=True)
        for each in (shares, before / np.maximum(before.sum(axis=3, keepdims=True), 1))
    )
    gram = x @ x.swapaxes(2, 3)  # [T, L, R, R]
    trace = np.trace(gram, axis1=2, axis2=3)
    other = np.square(previous).sum(axis=(2, 3))
    return {
        "row dispersion": np.log(np.maximum(dispersion, 1e-6)),
        "row entropy spread": entropy(shares).std(axis=2),
        "row spectrum": _known_ratio(trace**2, np.square(gram).sum(axis=(2, 3))),
        "empty cells": empty.mean(axis=(2, 3)),
        "row persistence": _known_ratio(
            np.einsum("tlre,tlre->tl", x, previous), np.sqrt(trace * other)
        ),
        "row coupling": _coupling(gram),
    }


def _coupling(gram: Float64) -> Float64:
    """Correlate ranks' similarity ``[T, L, R, R]`` between layers, ``[T, L]``."""
    depth, ranks = gram.shape[1:3]
    if depth == 1 or ranks < 3:
        return np.full(gram.shape[:2], np.nan)
    one, other = np.triu_indices(ranks, 1)
    alike = gram[..., one, other]  # [T, L, R(R-1)/2]
    alike = alike - alike.mean(axis=2, keepdims=True)
    alike = _known_ratio(alike, np.linalg.norm(alike, axis=2, keepdims=True))
    with_all = np.einsum("tlp,tp->tl", alike, alike.sum(axis=1))
    own = np.square(alike).sum(axis=2)
    return np.asarray((with_all - own) / (depth - 1), np.float64)


def _known_ratio(above: Float64, below: Float64) -> Float64:
    """Divide; 0 where the divisor is 0, as of rows that are all the same."""
    found: Float64 = np.nan_to_num(ratio(above, below), nan=0.0)
    return found
