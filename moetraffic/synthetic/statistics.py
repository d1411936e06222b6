r"""Statistics of a run that do not depend on the numbering of experts and ranks.

Experts of runs with different seeds do not correspond by index, so that only such
statistics can be compared.  T iterations, L layers, R ranks, E experts:
``n[t, l, r, e]`` are token copies that a rank routes to an expert, the load ``p[t, l,
e]`` is the share of expert e in the layer's copies, and rows ``x[t, l, r, e]`` are a
rank's shares less their mean over ranks.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from moetraffic.analysis.measures import entropy, total_variation
from moetraffic.arrays import Float64, Integer

STATISTICS = {
    "entropy": "linear",
    "busiest_expert": "log",
    "growth": "log",
    "change_over_noise": "log",
    "change_5": "log",
    "change_20": "log",
    "drift": "log",
    "hot_kept": "linear",
    "rank_correlation": "linear",
    "row_dispersion": "log",
    "row_directions": "log",
    "row_persistence": "linear",
    "layer_coupling": "linear",
}
"""Statistics and the scale on which runs scatter; ``moetraffic.columns`` has them."""

RANGES = {
    **dict.fromkeys(("entropy", "hot_kept"), (0.0, 1.0)),
    **dict.fromkeys(
        ("rank_correlation", "row_persistence", "layer_coupling"), (-1.0, 1.0)
    ),
}
"""What shares and correlations can be."""

LAGS = (5, 20)
"""Iterations over which changes are compared with those of one iteration."""

KEPT_AFTER = 10
"""Iterations after which it is looked whether hot experts are still hot."""

SHORTEST = 2 * LAGS[-1]
"""Iterations of a run that all statistics are known of."""

LEAST = 1e-3
"""Smallest value on a logarithmic scale, such as the change of constant traffic."""


def statistics(counts: Integer) -> dict[str, float]:
    """Compute the statistics of a run.

    Parameters
    ----------
    counts
        ``[T, L, R, E]`` token copies that a rank routes to an expert.

    Returns
    -------
    dict of str to float
        By the names of :data:`STATISTICS`: means over iterations and layers, or ratios
        of such means.  NaN where a run is too short, or has too few ranks or layers.
    """
    total = counts.sum(axis=2, dtype=np.float64)
    copies = np.maximum(total.sum(axis=2, keepdims=True), 1)
    load = total / copies
    peak = load.max(axis=2) * load.shape[2]
    end = max(1, len(load) // 5)
    found = {
        "entropy": mean(entropy(load)),
        "busiest_expert": mean(peak),
        "growth": ratio(mean(peak[-end:]), mean(peak[:end])),
        **_movement(load, mean(sampling_noise(load, copies))),
        **_rows(counts),
    }
    return {name: found.get(name, float("nan")) for name in STATISTICS}


def mean(values: Float64) -> float:
    """Compute the mean of known values; NaN if there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def ratio(above: float, below: float) -> float:
    """Divide; what is constant changes by 0 times its noise, and 0 / 0 is unknown."""
    return above / below if below > 0 else float("nan")


def sampling_noise(load: Float64, copies: Float64 | float) -> Float64:
    r"""Compute the expected change of a constant load by sampling alone, ``[T, L]``.

    .. math:: E \frac12 \sum_e |\hat p_e - \hat p_e'| \approx \sum_e
              \sqrt{p_e (1 - p_e) / (\pi N)}

    of two multinomial draws of N copies, by the normal approximation.
    """
    return np.asarray(np.sqrt(load * (1 - load) / (np.pi * copies)).sum(axis=2))


def _movement(load: Float64, noise: float) -> dict[str, float]:
    """Compute how the load ``[T, L, E]`` moves in time.

    A change is the total variation between two iterations; drift is that between the
    mean loads of the first and the last fifth, over what it is by sampling noise; hot
    is the quarter of the experts with the largest load.
    """

    def change(lag: int) -> float:
        return mean(total_variation(load[lag:], load[:-lag]))

    end = max(1, len(load) // 5)
    drift = total_variation(load[-end:].mean(axis=0), load[:end].mean(axis=0))
    hot = max(1, load.shape[2] // 4)
    members = load >= np.sort(load, axis=2)[:, :, [-hot]]
    kept = members[KEPT_AFTER:] & members[:-KEPT_AFTER]
    moved = change(1)
    return {
        "change_over_noise": ratio(moved, noise),
        **{f"change_{lag}": ratio(change(lag), moved) for lag in LAGS},
        "drift": ratio(mean(drift) * np.sqrt(end), noise),
        "hot_kept": ratio(mean(kept.mean(axis=2)), mean(members.mean(axis=2))),
    }


def _rows(counts: Integer) -> dict[str, float]:
    r"""Compute how ranks differ: means over iterations and layers.

    With ``G = x x'`` of an iteration and layer, ``[R, R]``: dispersion is
    :math:`\chi^2/((R-1)(E-1))` of the counts against those of the load, 1 where each
    rank draws from the same shares; directions are :math:`(tr G)^2 / tr G^2`;
    persistence is the correlation of x with that of the iteration before; rank
    correlation is Pearson's, over experts, of two ranks' counts; coupling is
    the correlation, over pairs of ranks, of G in two layers: are ranks that are similar
    in one layer similar in another?
    """
    _, depth, ranks, experts = counts.shape
    if ranks < 2:
        return {}
    pairs = np.triu_indices(ranks, 1)
    values: dict[str, list[Float64]] = defaultdict(list)
    previous = None
    for n in counts:  # an iteration at a time, for memory
        copies = np.maximum(n.sum(axis=2, keepdims=True, dtype=np.float64), 1)
        load = n.sum(axis=1, keepdims=True) / copies.sum(axis=1, keepdims=True)
        expected = copies * load
        squared = _known((n - expected) ** 2, expected)
        values["row_dispersion"].append(
            squared.sum(axis=(1, 2)) / max(1, (ranks - 1) * (experts - 1))
        )
        values["rank_correlation"].append(_of_pairs(_unit(n / copies)))
        x = n / copies
        x -= x.mean(axis=1, keepdims=True)
        gram = x @ x.swapaxes(1, 2)
        power = np.trace(gram, axis1=1, axis2=2)
        directions = _known(power**2, np.square(gram).sum(axis=(1, 2)))
        values["row_directions"].append(directions)
        if previous is not None:
            common = (x * previous[0]).sum(axis=(1, 2))
            persistence = _known(common, np.sqrt(power * previous[1]))
            values["row_persistence"].append(persistence)
        if depth > 1 and ranks > 2:
            alike = _unit(gram[:, pairs[0], pairs[1]])
            values["layer_coupling"].append(_of_pairs(alike))
        previous = x, power
    return {name: mean(np.array(rows)) for name, rows in values.items()}


def _unit(rows: Float64) -> Float64:
    """Center rows ``[..., D]`` and scale them to the norm 1; constant ones are 0."""
    centered = rows - rows.mean(axis=-1, keepdims=True)
    return _known(centered, np.linalg.norm(centered, axis=-1, keepdims=True))


def _of_pairs(z: Float64) -> Float64:
    """Compute the mean product of two of ``[..., n, D]``, over all pairs of n."""
    both = np.square(z.sum(axis=-2)).sum(axis=-1) - np.square(z).sum(axis=(-2, -1))
    return np.asarray(both / (z.shape[-2] * (z.shape[-2] - 1)))


def _known(above: Float64, below: Float64) -> Float64:
    """Divide; 0 where the divisor is 0, as of rows that are all the same."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
