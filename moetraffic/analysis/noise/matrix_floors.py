r"""Noise floors of what is said of a whole demand matrix under a balanced gate.

W sources with N tokens each choose k of E experts, every set equally likely, each token
for itself.  A source's row is then like any other, and rows are independent:

    conditional entropy H(D|S)   the mean of W row entropies: exact mean, the standard
                                 deviation of one row (simulated) over sqrt W
    joint entropy H(S,D)         log2 W more
    mutual information I(S;D)    exact mean; standard deviation from the chi-square law
                                 of Wilks with (W-1)(R-1) degrees of freedom, or
                                 simulated where a cell has few token copies
    columns                      any measure over the W cells of an expert; simulated
    share between hosts          exact mean; standard deviation exact with the diagonal

An estimate of mutual information is thus never 0 for a gate that knows nothing: it is
about :math:`(W-1)(R-1)(E-k) / (2 \ln 2\, (E-1)\, W N k)` bits.

References
----------
S. S. Wilks, The large-sample distribution of the likelihood ratio, Ann. Math. Statist.
9 (1938) 60: 2 ln 2 times copies times I is chi-square.  Drawing k experts without
replacement makes it (E-k)/(E-1) times as wide.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.network.information import information
from moetraffic.analysis.skew import measures
from moetraffic.errors import AnalysisError

from .balanced_router import balanced_counts, balanced_tokens, mean_entropy
from .noise_floors import NoiseFloor, noise_floor

Float64 = npt.NDArray[np.float64]

FEW = 5.0
"""Mean token copies of a cell below which chi-square is not trusted."""

SIMULATED_CELLS = 1 << 22
"""Of matrices that are drawn at a time."""


def conditional_entropy_floor(
    tokens: npt.ArrayLike,
    *,
    experts: int,
    k: int,
    sources: int,
    ranks: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> NoiseFloor:
    """Floor of H(D|S), the destination's entropy where the source is known.

    Parameters
    ----------
    tokens
        N of each source; any shape, a floor each.
    experts, k, ranks
        E, distinct experts of a token, and R to merge experts to (None keeps experts).
    sources
        W.
    draws, seed
        As in :func:`moetraffic.analysis.noise.noise_floors.noise_floor`.

    Returns
    -------
    NoiseFloor
        Bits.

    Raises
    ------
    AnalysisError
        If no balanced gate has these numbers.

    Examples
    --------
    >>> floor = conditional_entropy_floor(512, experts=8, k=2, sources=8)
    >>> round(float(floor.mean), 4)
    2.9958
    """
    balanced_tokens(tokens, experts, k, ranks, sources)
    row = noise_floor(
        "entropy", tokens, experts=experts, k=k, ranks=ranks, draws=draws, seed=seed
    )
    return NoiseFloor(mean=row.mean, std=row.std / np.sqrt(sources))


def joint_entropy_floor(
    tokens: npt.ArrayLike,
    *,
    experts: int,
    k: int,
    sources: int,
    ranks: int | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> NoiseFloor:
    """Floor of the entropy of all cells, H(S,D).

    All rows have the same sum, so that it is log2 W above that of
    :func:`conditional_entropy_floor`.
    :func:`moetraffic.analysis.noise.noise_floors.noise_floor` of "entropy" says the
    same at the cost of W rows.
    """
    row = conditional_entropy_floor(
        tokens,
        experts=experts,
        k=k,
        sources=sources,
        ranks=ranks,
        draws=draws,
        seed=seed,
    )
    return NoiseFloor(mean=row.mean + np.log2(sources), std=row.std)


def mutual_information_floor(
    tokens: npt.ArrayLike,
    *,
    experts: int,
    k: int,
    sources: int,
    ranks: int | None = None,
    draws: int = 400,
    seed: int = 0,
) -> NoiseFloor:
    """Floor of I(S;D) as estimated from counts, not bias-corrected.

    Parameters
    ----------
    tokens, experts, k, sources, ranks
        As in :func:`conditional_entropy_floor`.
    draws, seed
        Of the simulation where a cell has fewer than :data:`FEW` copies on average.

    Returns
    -------
    NoiseFloor
        Bits.

    Raises
    ------
    AnalysisError
        If no balanced gate has these numbers.

    Examples
    --------
    >>> floor = mutual_information_floor(4096, experts=8, k=1, sources=8)
    >>> round(float(floor.mean), 6)  # about 49 / (2 ln 2 * 32768)
    0.001079
    """
    number = balanced_tokens(tokens, experts, k, ranks, sources)
    distinct, inverse = np.unique(number, return_inverse=True)
    found = np.array(
        [
            _mutual(int(n), experts, k, sources, ranks, draws, seed)
            for n in distinct.tolist()
        ],
        dtype=np.float64,
    ).reshape(-1, 2)[inverse.reshape(number.shape)]
    return NoiseFloor(mean=found[..., 0][()], std=found[..., 1][()])


@lru_cache(maxsize=4096)
def _mutual(
    tokens: int,
    experts: int,
    k: int,
    sources: int,
    ranks: int | None,
    draws: int,
    seed: int,
) -> tuple[float, float]:
    """Mean and standard deviation for one token count."""
    if tokens == 0:
        return float("nan"), float("nan")
    cells = experts if ranks is None else ranks
    if min(cells, sources) == 1 or k == experts:
        return 0.0, 0.0
    copies = tokens * k * sources
    wide = (experts - k) / (experts - 1)
    degrees = (sources - 1) * (cells - 1)
    merging = cells < experts
    if tokens * k / cells < FEW:
        values = _drawn(tokens, experts, k, sources, ranks, draws, seed)
        mean, std = float(values.mean()), float(values.std(ddof=1))
    else:
        mean = wide * degrees / (2 * measures.LN2 * copies)
        std = wide * float(np.sqrt(2 * degrees)) / (2 * measures.LN2 * copies)
    if not merging:
        # rows have log2 W; the loads of all rows are those of one of W N tokens
        loads = mean_entropy(tokens * sources, experts, k, 1)
        mean = loads - mean_entropy(tokens, experts, k, 1)
    return mean, std


def _drawn(
    tokens: int,
    experts: int,
    k: int,
    sources: int,
    ranks: int | None,
    draws: int,
    seed: int,
) -> Float64:
    """Mutual information of drawn matrices, ``[draws]``."""
    at_once = max(1, SIMULATED_CELLS // (sources * experts))
    found = []
    for part, first in enumerate(range(0, draws, at_once)):
        counts = balanced_counts(
            np.full(sources, tokens),
            experts=experts,
            k=k,
            draws=min(at_once, draws - first),
            seed=seed + part,
        )
        if ranks is not None:
            counts = counts.reshape(*counts.shape[:-1], ranks, -1).sum(axis=-1)
        found.append(np.atleast_1d(information(counts).mutual))
    values: Float64 = np.concatenate(found)
    return values


def column_floor(
    measure: str,
    tokens: npt.ArrayLike,
    *,
    experts: int,
    k: int,
    sources: int,
    draws: int = 2000,
    seed: int = 0,
) -> NoiseFloor:
    """Floor of a measure over an expert's column, the copies that each source sends it.

    Cells are independent and binomial (N, k/E); a column that stays empty says nothing
    and is left out (but for sparsity).

    Parameters
    ----------
    measure
        A name of :data:`moetraffic.analysis.skew.measures.MEASURES`.
    tokens, experts, k, sources, draws, seed
        As in :func:`conditional_entropy_floor`.

    Raises
    ------
    AnalysisError
        If the measure is not known or no balanced gate has these numbers.

    Examples
    --------
    >>> floor = column_floor("cv_squared", 1000, experts=8, k=1, sources=64)
    >>> bool(0.0065 < floor.mean < 0.0073)  # (E-k)/(kN) (W-1)/W
    True
    """
    if measure not in measures.MEASURES:
        raise AnalysisError(
            f"a noise floor is of one of {', '.join(measures.MEASURES)}, "
            f"not {measure!r}: "
            f"choose one of them"
        )
    number = balanced_tokens(tokens, experts, k, None, sources)
    distinct, inverse = np.unique(number, return_inverse=True)
    found = np.full((len(distinct), 2), np.nan)
    for at, n in enumerate(distinct.tolist()):
        rng = np.random.default_rng(seed)
        counts = rng.binomial(n, k / experts, size=(draws, sources))
        values = measures.MEASURES[measure](counts, axis=-1)
        values = values[np.isfinite(values)]
        if n and len(values) > 1:
            found[at] = values.mean(), values.std(ddof=1)
    shaped = found[inverse.reshape(number.shape)]
    return NoiseFloor(mean=shaped[..., 0][()], std=shaped[..., 1][()])


def inter_host_floor(
    tokens: npt.ArrayLike,
    *,
    experts: int,
    k: int,
    ranks: int,
    hosts: int,
    diagonal: bool = False,
) -> NoiseFloor:
    r"""Floor of the share of token copies that leave their host.

    R ranks on H hosts each hold E/R experts and send N tokens.  Of the E' experts that
    are counted for a source (those of other ranks; with the diagonal all), the share q
    is on other hosts, and as the t copies of a token that go to these E' are any of
    them, the mean is exactly q and the variance

    .. math:: \frac{q (1 - q)}{E' - 1} \frac{E[t (E' - t)]}{R N E[t]^2}

    exact with the diagonal (t = k), and to a relative 1/(R N k) without.

    Parameters
    ----------
    tokens
        N of each rank; any shape, a floor each.
    experts, k, ranks
        E, distinct experts of a token, R = W.
    hosts
        H, with R/H ranks on each.
    diagonal
        True counts what a rank sends its own experts.

    Raises
    ------
    AnalysisError
        If H does not divide R, R not E, or no balanced gate has these numbers.

    Examples
    --------
    >>> floor = inter_host_floor(512, experts=64, k=2, ranks=16, hosts=2)
    >>> round(float(floor.mean), 6)
    0.533333
    """
    number = balanced_tokens(tokens, experts, k, ranks, ranks).astype(np.float64)
    if hosts < 1 or ranks % hosts:
        raise AnalysisError(
            f"hosts are filled with R/H ranks each, but there are {ranks} ranks and "
            f"{hosts} hosts: choose H as a divisor of R"
        )
    own = 0 if diagonal else experts // ranks
    counted = experts - own
    if not counted:
        nothing = np.full(number.shape, np.nan)[()]
        return NoiseFloor(mean=nothing, std=nothing)
    q = (experts - experts // hosts) / counted
    # t is hypergeometric: k drawn of E, E' of which count
    first = k * counted / experts
    spread = 0.0
    if experts > 1:
        spread = first * (1 - counted / experts) * (experts - k) / (experts - 1)
    varying = first * counted - (spread + first**2)
    single = q * (1 - q) * varying / max(counted - 1, 1) / first**2
    known = number > 0
    variance = measures.ratio(max(single, 0.0), ranks * number)
    return NoiseFloor(
        mean=np.where(known, q, np.nan)[()], std=np.asarray(np.sqrt(variance))[()]
    )
