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
import numpy.typing as npt

from moetraffic.analysis.network.flows import inter_host_share
from moetraffic.analysis.skew.hot_experts import hot_members, retention
from moetraffic.analysis.skew.kernels import matrix_statistics
from moetraffic.analysis.skew.measures import means_of_known, normalized_entropy
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

from .routing_counts import routing_counts

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Counts = npt.NDArray[np.integer]

LAGS = 50
"""Maximum lag of autocorrelation and of hot-set overlap."""

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
    coupling: Float64  # [T, P] of rows, of one layer with another

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
            coupling=self.coupling[cut],
        )


SERIES = {
    "entropy": "normalized entropy of the load over experts",
    "max over mean": "busiest expert's load over the mean",
    "line efficiency": "line efficiency of the matrix between ranks",
    "inter-host share": "share of the copies between ranks that leave the host",
    "row dispersion": "log of the rows' chi-squared over its degrees of freedom",
    "change": "total variation of the load to the iteration before",
}
"""Statistics per iteration and layer, with descriptions."""


def joint(run: Features) -> Float64:
    """Join all statistics of each iteration, ``[T, F]``, unknown ones as 0."""
    flat = np.concatenate(
        [run.ordered.reshape(len(run.load), -1), *run.series.values(), run.coupling], 1
    )
    known: Float64 = np.nan_to_num(flat, nan=0.0, posinf=0.0, neginf=0.0)
    return known


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
    )


def count_features(
    counts: Counts,
    *,
    name: str = "counts",
    layers: Sequence[int] | None = None,
    holder: Int64 | None = None,
    width: int | None = None,
    ranks_a_host: int | None = None,
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

    Raises
    ------
    AnalysisError
        If the counts are not of that shape, or a host has no rank.
    """
    n = np.asarray(counts)
    if n.ndim != 4 or len(n) < 2 or 0 in n.shape:
        raise AnalysisError(
            f"counts are [T, L, R, E] of two iterations or more, but the shape is "
            f"{n.shape}: give those"
        )
    total, depth, ranks, experts = n.shape
    group = ranks if width is None else width
    own = np.arange(experts) * group // experts
    held = np.broadcast_to(own, (depth, experts)) if holder is None else holder
    a_host = max(1, group // 2) if ranks_a_host is None else ranks_a_host
    if a_host < 1:
        raise AnalysisError(
            f"a host has at least 1 rank, but ranks per host are {a_host}: give an "
            "integer from 1 on"
        )
    hosts = np.arange(group) // a_host
    at_once = max(1, CELLS // (depth * ranks * experts))
    parts = [
        _of_window(n[at : at + at_once], np.asarray(held), hosts)
        for at in range(0, total, at_once)
    ]
    found = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    load, coupling, copies = (found.pop(key) for key in ("load", "coupling", "copies"))
    change = np.abs(np.diff(load, axis=0)).sum(axis=2) / 2
    return Features(
        name=name,
        layers=tuple(range(depth) if layers is None else layers),
        shape=(ranks, experts),
        tokens=int(np.median(copies)),
        load=load,
        series=found | {"change": np.concatenate((change[:1], change))},
        coupling=coupling,
    )


def _of_window(counts: Counts, holder: Int64, hosts: Int64) -> dict[str, Float64]:
    """Compute the statistics of a window that depend on single iterations alone."""
    total = counts.sum(axis=2)
    copies = total.sum(axis=-1, dtype=np.float64)
    load = total / np.maximum(copies, 1)[..., None]
    dispersion, coupling = _rows(counts, load)
    wire = _between_ranks(counts, holder, len(hosts))
    flat = wire.reshape(-1, len(hosts), len(hosts))
    efficiency = matrix_statistics(flat, diagonal=False).line_efficiency
    return {
        "load": load,
        "copies": copies,
        "coupling": coupling,
        "entropy": normalized_entropy(load),
        "max over mean": load.max(axis=2) * load.shape[2],
        "line efficiency": means_of_known(efficiency.reshape(wire.shape[:3])),
        "inter-host share": means_of_known(inter_host_share(wire, hosts)),
        "row dispersion": np.log(np.maximum(dispersion, 1e-6)),
    }


def _between_ranks(counts: Counts, holder: Int64, width: int) -> Int64:
    """Compute token copies between the ranks of each group, ``[T, L, G, W, W]``."""
    total, depth, ranks, _ = counts.shape
    held = holder[..., None] == np.arange(width)  # [L, E, W]
    out = np.asarray(counts @ held, np.int64)
    return out.reshape(total, depth, ranks // width, width, width)


def _rows(counts: Counts, load: Float64) -> tuple[Float64, Float64]:
    r"""Compute row dispersion ``[T, L]`` and row coupling between layers ``[T, P]``.

    Dispersion is :math:`\chi^2/((R-1)(E-1))` of the rows against the layer's load: 1
    where each rank draws copies from the same shares.  Coupling is the correlation,
    over pairs of ranks, of :math:`x_r \cdot x_s` in two layers, x a rank's deviation
    from the load: are ranks that are similar in one layer similar in the next?
    """
    _, depth, ranks, experts = counts.shape
    rows = counts.sum(axis=3, keepdims=True)
    expected = rows * load[:, :, None]
    squared = np.zeros_like(expected)
    np.divide((counts - expected) ** 2, expected, out=squared, where=expected > 0)
    dispersion = squared.sum(axis=(2, 3)) / max(1, (ranks - 1) * (experts - 1))
    apart = counts / np.maximum(rows, 1) - load[:, :, None]
    inner = apart @ apart.swapaxes(2, 3)  # [T, L, R, R]
    one, other = np.triu_indices(ranks, 1)
    alike = inner[..., one, other]  # [T, L, R(R-1)/2]
    alike = alike - alike.mean(axis=2, keepdims=True) if ranks > 1 else alike
    norm = np.sqrt((alike**2).sum(axis=2, keepdims=True))
    alike = np.divide(alike, norm, out=np.zeros_like(alike), where=norm > 0)
    first, second = np.triu_indices(depth, 1)
    return dispersion, np.asarray((alike[:, first] * alike[:, second]).sum(2))


# ---- curves --------------------------------------------------------------------


def autocorrelation(load: Float64, lags: int = LAGS) -> Float64:
    r"""Compute the pooled autocorrelation of a layer's expert loads, ``[lags]``.

    .. math:: \rho_h = \sum_{e,t} x_{e,t} x_{e,t+h} / \sum_{e,t} x_{e,t}^2

    with deviations x from each expert's mean over the run, which weights experts by
    their variance.  Sampling noise is included, as in both runs.

    Parameters
    ----------
    load
        ``[T, E]``.
    lags
        Largest lag, below T.

    Returns
    -------
    float64
        NaN where the load never changes.
    """
    x = load - load.mean(axis=0)
    whole = float((x**2).sum())
    found = np.full(lags, np.nan)
    if whole > 1e-18 * load.size:
        for lag in range(1, min(lags, len(x) - 1) + 1):
            found[lag - 1] = (x[lag:] * x[:-lag]).sum() / whole
    return found


def hot_overlap(load: Float64, lags: int = LAGS) -> Float64:
    """Compute the mean retention of the hottest quarter of experts, ``[lags]``.

    Parameters
    ----------
    load
        ``[T, E]``; the hottest ``max(1, E // 4)``, the first of equals.
    """
    members = hot_members(load, max(1, load.shape[1] // 4))
    return retention(members, np.ones(len(load), bool), np.arange(1, lags + 1))[0]


def layer_coupling(load: Float64) -> Float64:
    r"""Compute RV coefficients between the loads of pairs of layers, ``[2, P]``.

    .. math:: RV = \|S_{ab}\|^2 / (\|S_{aa}\| \|S_{bb}\|)

    with covariances S over time, Frobenius norms; first of the loads, then of their
    changes from iteration to iteration.  0: independent; 1: equal up to rotation.

    Parameters
    ----------
    load
        ``[T, L, E]``.

    References
    ----------
    P. Robert and Y. Escoufier, Applied Statistics 25 (1976).
    """
    depth = load.shape[1]
    pairs = list(zip(*np.triu_indices(depth, 1), strict=True))
    found = np.full((2, len(pairs)), np.nan)
    for row, values in enumerate((load - load.mean(axis=0), np.diff(load, axis=0))):
        own = [np.linalg.norm(values[:, a].T @ values[:, a]) for a in range(depth)]
        for at, (a, b) in enumerate(pairs):
            if own[a] > 1e-15 and own[b] > 1e-15:
                both = np.linalg.norm(values[:, a].T @ values[:, b])
                found[row, at] = both**2 / (own[a] * own[b])
    return found
