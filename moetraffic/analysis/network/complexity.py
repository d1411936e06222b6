r"""Trace complexity: temporal and non-temporal structure of a packet sequence.

After Avin, Ghobadi, Griner, Schmid, "On the Complexity of Traffic Traces and
Implications", SIGMETRICS 2020 (arXiv 1905.08339).  With C the size after compression, s
the sequence of (source, destination), G(s) the same packets in random order and U as
many packets of pairs drawn evenly,

.. math:: T = C(s)/C(G(s)), \quad NT = C(G(s))/C(U), \quad \Psi = T \cdot NT.

Of a stationary source with entropy rate h and entropy H a packet, T tends to h/H and NT
to H/log2(K), K = R(R-1) pairs.

**Encoding.**  A byte compressor treats a pair as one symbol only if it is encoded as
one.  Pairs are numbered by decreasing frequency and written in one byte where there are
at most 256, in two up to 65,536 (the upper eight bits, then the others), else in four;
LZMA's literal coder is set to that width.  In the order of their ranks (source in one
byte, destination in the next) a skewed source of 4,032 pairs came out with NT .823
where .730 is right; in this one with .742.

**Bias.**  NT is within 2 % from about 50 packets a pair on, and 2 to 4 % too large
where fewer than 16 pairs send.  T is too large: a
dictionary compressor captures only part of the dependence on the past, which inflates
T by 10 to 30 %, and longer sequences help little.  ``temporal_corrected`` removes this
bias as estimated on a first-order Markov chain with the transitions of s, whose entropy
rate h1 and entropy H are known.  It is NaN if transitions are too rare for an estimate
of the rate.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError

from .packets import Packets

Interval = tuple[float, float]

COMPRESSOR = "lzma"

SHUFFLES = 3
"""Number of shuffles G(s) to average over."""

FEWEST = 1000
"""Minimum packets of a window for the estimate of the spread over windows."""

MOST_SINGLE = 0.05
"""Maximum share of transitions that occur once (Good-Turing estimate of the unseen
probability) for transition frequencies to count as known."""

_NAN = float("nan")


def _size(data: bytes, width: int) -> int:
    """Compress records of ``width`` bytes; return the size in bytes."""
    # Raw, as a header would bias short sequences.  lc: upper bits of the byte
    # before, lp: place in the record, that choose the table of the next literal.
    lc, lp = {1: (0, 0), 2: (3, 1)}.get(width, (2, 2))
    coder: dict[str, Any] = {
        "id": lzma.FILTER_LZMA1,
        "preset": 6,
        "lc": lc,
        "lp": lp,
        "pb": lp,
        # the whole input but no more: larger tables are slow to initialize
        "dict_size": max(4096, 1 << len(data).bit_length()),
    }
    return len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=[coder]))


@dataclass(frozen=True, kw_only=True)
class Complexity:
    """Trace complexity of a packet sequence; NaN where unavailable."""

    temporal: float  # T: 1 no temporal structure, near 0 strong
    non_temporal: float  # NT: 1 all pairs equally frequent
    trace_complexity: float  # Psi = T NT
    temporal_interval: Interval  # 95 %, from the spread over windows
    non_temporal_interval: Interval
    trace_complexity_interval: Interval
    temporal_corrected: float  # T corrected for compressor bias
    non_temporal_limit: float  # H/log2 K: limit of NT for long sequences
    shuffle_spread: float  # standard deviation of T over the shuffles
    entropy_bits: float  # H of a packet's pair, bias-corrected (Miller-Madow)
    markov_bits: float  # h1: of a pair given the one before (Miller-Madow); or NaN
    bits: float  # bits per packet: C(s)
    shuffled_bits: float  # C(G(s)), mean of the shuffles
    uniform_bits: float  # C(U)
    records: int  # packets that were compressed
    pairs: int  # K, pairs that could send
    windows: int  # of the sequence
    whole: bool  # whether those are all packets of the trace
    order: str  # of the packets in a matrix
    packet_size: int  # bytes or token copies per packet
    compressor: str
    shuffles: int
    seed: int


def complexity(sequence: Packets, *, seed: int = 0) -> Complexity:
    """Compute the trace complexity of a packet sequence by compression.

    Parameters
    ----------
    sequence
        From :func:`moetraffic.analysis.network.packets.packets`, or any other.
    seed
        Seed of the shuffles, of U and of the Markov chain.

    Returns
    -------
    Complexity
        All NaN with fewer than two packets or only one pair that could send.

    Raises
    ------
    AnalysisError
        If a pair is not among those that could send.
    """
    pair = np.asarray(sequence.pair, np.int64)
    if len(pair) and not 0 <= pair.min() <= pair.max() < sequence.pairs:
        raise AnalysisError(
            f"pairs are numbered from 0 to below {sequence.pairs}, but these go from "
            f"{pair.min()} to {pair.max()}: number them among those that could send"
        )
    code = _Code(pair, sequence.pairs)
    rng = np.random.default_rng(seed)
    # Step 1: compress the sequence, its shuffles and a uniform sequence.
    own = code.bits(pair)
    shuffled = [code.bits(rng.permutation(pair)) for _ in range(SHUFFLES)]
    even = rng.integers(0, max(1, sequence.pairs), len(pair))
    mean, uniform = float(np.mean(shuffled)), code.bits(even)
    # Step 2: the spread over windows.
    borders = sequence.borders
    rows = np.array(
        [
            _ratios(*map(code.bits, (pair[a:b], rng.permutation(pair[a:b]), even[a:b])))
            for a, b in pairwise(borders.tolist())
            if b - a >= FEWEST
        ]
    ).reshape(-1, 3)
    values = _ratios(own, mean, uniform)
    intervals = [_interval(v, rows[:, at]) for at, v in enumerate(values)]
    # Step 3: bias of the compressor on a Markov chain of known entropy rate.
    most = float(np.log2(max(1, sequence.pairs)))
    entropy, markov, drawn = _chain(pair, sequence.pairs, rng)
    entropy = min(entropy, most)
    corrected = _NAN
    if markov > 0 and values[0] == values[0]:
        reached = _over(code.bits(drawn), code.bits(rng.permutation(drawn)))
        corrected = min(1.0, values[0] * (markov / entropy) / reached)
    elif markov == 0:  # deterministic transitions: no bias to correct
        corrected = values[0]
    return Complexity(
        temporal=values[0],
        non_temporal=values[1],
        trace_complexity=values[2],
        temporal_interval=intervals[0],
        non_temporal_interval=intervals[1],
        trace_complexity_interval=intervals[2],
        temporal_corrected=corrected,
        non_temporal_limit=_over(entropy, most),
        shuffle_spread=float(np.std([_over(own, s) for s in shuffled], ddof=1)),
        entropy_bits=entropy,
        markov_bits=markov,
        bits=own,
        shuffled_bits=mean,
        uniform_bits=uniform,
        records=len(pair),
        pairs=sequence.pairs,
        windows=len(borders) - 1,
        whole=sequence.whole,
        order=sequence.order,
        packet_size=sequence.packet_size,
        compressor=COMPRESSOR,
        shuffles=SHUFFLES,
        seed=seed,
    )


class _Code:
    """Encoding of pairs in bytes, and compressed size per packet."""

    def __init__(self, pair: Int64, pairs: int) -> None:
        counts = np.bincount(pair, minlength=max(1, pairs))
        self._rank = np.empty(len(counts), np.int64)
        self._rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
        letters = max(1, int(np.ceil(np.log2(max(2, pairs)))))
        self._cuts: tuple[tuple[int, int], ...]  # shift and mask of each byte
        if letters <= 8:
            self._cuts = ((0, 255),)
        elif letters <= 16:
            self._cuts = ((letters - 8, 255), (0, (1 << letters - 8) - 1))
        else:
            third = -(-letters // 3)
            low = (1 << third) - 1
            self._cuts = ((32, 0), (2 * third, 255), (third, low), (0, low))
        self._several = pairs > 1
        # fixed overhead of an empty input is subtracted
        self._empty = _size(b"", len(self._cuts))

    def bits(self, pair: Int64) -> float:
        """Compute compressed bits per packet; NaN of less than two packets or pairs."""
        if len(pair) < 2 or not self._several:
            return _NAN
        rank = self._rank[pair]
        width = len(self._cuts)
        data = np.stack([(rank >> shift) & mask for shift, mask in self._cuts], axis=1)
        size = _size(data.astype(np.uint8).tobytes(), width) - self._empty
        return 8.0 * size / len(pair)


def _over(value: float, by: float) -> float:
    return value / by if by > 0 else _NAN


def _ratios(own: float, shuffled: float, uniform: float) -> tuple[float, float, float]:
    """Compute temporal, non-temporal and total complexity from compressed sizes."""
    temporal, other = _over(own, shuffled), _over(shuffled, uniform)
    return temporal, other, temporal * other


def _interval(value: float, of_windows: Float64) -> Interval:
    """Compute a 95 % interval by batch means over windows; NaN below three windows."""
    known = of_windows[np.isfinite(of_windows)]
    if len(known) < 3:
        return _NAN, _NAN
    error = float(known.std(ddof=1)) / len(known) ** 0.5
    aside = float(scipy.stats.t.ppf(0.975, len(known) - 1)) * error
    return max(0.0, value - aside), value + aside


def _chain(
    pair: Int64, pairs: int, rng: np.random.Generator
) -> tuple[float, float, Int64]:
    """Fit a first-order Markov chain: entropy H, entropy rate h1, sampled sequence.

    The sequence is closed to a cycle: the stationary distribution of the chain is then
    exactly that of the sequence, and there are no absorbing states.
    """
    if len(pair) < 2 or pairs < 2:
        return _NAN, _NAN, pair
    after = np.roll(pair, -1)
    counts = np.bincount(pair, minlength=pairs)
    steps = np.unique(pair * pairs + after, return_counts=True)[1]
    entropy, both = _entropy(counts[counts > 0]), _entropy(steps)
    order = np.argsort(pair, kind="stable")
    followers = after[order].tolist()
    begin = (np.cumsum(counts) - counts).tolist()
    number = counts.tolist()
    state, drawn = int(pair[0]), []
    for u in rng.random(len(pair)).tolist():
        drawn.append(state)
        state = followers[begin[state] + int(u * number[state])]
    known = (steps == 1).sum() <= MOST_SINGLE * len(pair)
    rate = max(0.0, both - entropy) if known else _NAN
    return entropy, rate, np.array(drawn, np.int64)


def _entropy(counts: Int64) -> float:
    """Compute the Miller-Madow corrected entropy, bits; exactly 0 of a single class."""
    total = int(counts.sum())
    share = counts / total
    bias = (len(counts) - 1) / (2 * total * np.log(2))
    return float(-(share * np.log2(share)).sum() + bias) + 0.0
