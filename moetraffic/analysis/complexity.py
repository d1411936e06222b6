r"""Trace complexity: temporal and non-temporal structure of a packet sequence.

After Avin, Ghobadi, Griner, Schmid, "On the Complexity of Traffic Traces and
Implications", SIGMETRICS 2020 (arXiv 1905.08339).  With C the size after compression, s
the sequence of (source, destination), G(s) the same packets in random order and U as
many packets of pairs drawn evenly,

.. math:: T = C(s)/C(G(s)), \quad NT = C(G(s))/C(U), \quad \Psi = T \cdot NT.

Of a stationary source with entropy rate h and entropy H a packet, T tends to h/H and NT
to H/log2(K), K = R(R-1) pairs.

**Packets.**  A matrix has amounts per pair but no order: matrices follow each other in
time, and packets within a matrix are shuffled, so that only changes between matrices
remain as temporal structure.

**Encoding.**  A byte compressor treats a pair as one symbol only if it is encoded as
one.  Pairs are numbered by decreasing frequency and written in one byte where there are
at most 256, in two up to 65,536 (the upper eight bits, then the others), else in four;
LZMA's literal coder is set to that width.  In the order of their ranks (source in one
byte, destination in the next) a skewed source of 4,032 pairs came out with NT .823
where .730 is right; in this one with .742.

**Bias.**  NT is within 2% from about 50 packets a pair on, and 2 to 4% too large where
fewer than 16 pairs send.  T is too large by 10 to 30%, and longer sequences help
little: a dictionary compressor captures only part of the dependence on the past.
``temporal_corrected`` removes this bias as estimated on a first-order Markov chain with
the transitions of s, whose entropy rate h1 and entropy H are known.  It is NaN if
transitions are too rare for an estimate of the rate.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from moetraffic.arrays import Float64, Int64

if TYPE_CHECKING:
    from moetraffic.analysis.exchange import Exchange
    from moetraffic.trace import Trace

BUDGET = 1 << 16
"""Maximum number of packets drawn from an exchange."""

WINDOWS = 8
"""Number of contiguous windows that packets are drawn from."""

MATRICES = 64
"""Target number of matrices per window, so that it contains recurrence over time."""

READ_CELLS = 1 << 20
"""Cells of matrices read at a time."""

SHUFFLES = 3
"""Number of shuffles G(s) to average over."""

FEWEST = 1000
"""Minimum packets of a window for the estimate of the spread over windows."""

MOST_SINGLE = 0.05
"""Maximum share of transitions that occur once (Good-Turing estimate of the unseen
probability) for transition frequencies to count as known."""

NAN = float("nan")


def complexity_tables(
    trace: Trace, exchange: Exchange, notes: list[str]
) -> dict[str, list[dict[str, Any]]]:
    """List the table ``complexity``: of the wire or, without wire, of the demand."""
    from moetraffic.analysis.exchange import read

    on_wire, width = len(exchange.sent) > 0, len(exchange.ranks)
    if on_wire and width < 2:
        return {"complexity": []}

    def cells(first: int, last: int) -> Int64:
        window = read(trace, exchange, range(first, last))
        matrices = window.wire if on_wire else window.demand
        assert matrices is not None
        if on_wire:
            matrices = matrices[:, ~np.eye(width, dtype=bool)]
        return matrices.reshape(len(matrices), -1).astype(np.int64)

    row = complexity(packets(cells, number=len(exchange.iterations)))
    if not np.isfinite(row["trace_complexity"]):
        notes.append(
            f"layer {exchange.layer}, group {exchange.group}: no complexity, since "
            "there are no two packets between different pairs"
        )
    return {"complexity": [{**exchange.key, **row}]}


# ---- packets of matrices -------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Packets:
    """Packet sequence in time order, with the parameters of its construction."""

    pair: Int64  # [N] cell of each packet
    borders: Int64  # [windows + 1] boundaries of the windows
    pairs: int  # K cells that could send: R(R-1) for ranks
    packet_size: int = 1  # amount (bytes, token copies) per packet
    whole: bool = True  # whether all matrices are included completely


def packets(
    read: Callable[[int, int], Int64],
    *,
    number: int,
    packet_size: int = 0,
    budget: int = BUDGET,
    windows: int = WINDOWS,
    seed: int = 0,
) -> Packets:
    """Sample a bounded number of packets from a matrix series in contiguous windows.

    Window i begins at matrix ``i n / windows`` and extends without gaps until its share
    of the budget is used or the next window begins; short series are used completely.
    A cell emits one packet per ``packet_size``, with the remainder carried over to the
    next matrix, so that shares are preserved for any size; the initial carry of a
    window is random.

    Parameters
    ----------
    read
        Function that returns the cells ``[n, K]`` of the matrices of a half-open range
        of indices in time order.
    number
        Number of matrices.
    packet_size
        Amount per packet; 0: the smallest power of two with which windows of the budget
        hold :data:`MATRICES` matrices, going by the first matrix of each window.
    budget
        Largest number of packets.
    windows
        Number of windows; fewer if there are fewer matrices.
    seed
        Seed of the initial carry of each window and of the order in each matrix.
    """
    starts = np.unique(np.arange(windows) * number // windows)[:number]
    first = [read(start, start + 1) for start in starts.tolist()]
    pairs = (first[0] if first else read(0, 0)).shape[1]
    share = max(1, budget // max(1, len(starts)))
    if not packet_size:
        typical = float(np.mean([f.sum(dtype=np.float64) for f in first] or [0.0]))
        wanted = typical * min(MATRICES, max(1.0, number / max(1, len(starts)))) / share
        packet_size = 1 << max(0, int(np.ceil(np.log2(max(wanted, 1.0)))))
    rng = np.random.default_rng(seed)
    step = max(1, min(MATRICES, READ_CELLS // max(1, pairs)))
    sequence, borders, whole = [np.zeros(0, np.int64)], [0], True
    for start, stop in pairwise([*starts.tolist(), number]):
        carry = np.asarray(rng.integers(0, packet_size, pairs), np.int64)
        drawn, index, cut = 0, start, False
        while index < stop and drawn < share:
            cells = read(index, min(stop, index + step))
            before = carry + np.cumsum(cells, axis=0) - cells
            counts = (before + cells) // packet_size - before // packet_size
            carry = (carry + cells.sum(axis=0)) % packet_size
            # a block may exceed the budget: keep the matrices within it and one more
            total = np.cumsum(counts.sum(axis=1))
            counts = counts[: int(np.searchsorted(total, share - drawn)) + 1]
            block = shuffled(counts, seed=int(rng.integers(1 << 31)))
            cut = len(block) > share - drawn
            sequence.append(block[: share - drawn])
            drawn += len(sequence[-1])
            index += len(counts)
        borders.append(borders[-1] + drawn)
        whole &= index >= stop and not cut
    return Packets(
        pair=np.concatenate(sequence),
        borders=np.array(borders, np.int64),
        pairs=pairs,
        packet_size=packet_size,
        whole=whole,
    )


def shuffled(counts: Int64, *, seed: int = 0) -> Int64:
    """List the cell of each packet of matrices in turn, in random order within each.

    ``counts``: ``[n, P]`` packets of each of P cells in each of n matrices.

    Examples
    --------
    >>> shuffled(np.array([[2, 0, 0], [0, 1, 0]])).tolist()
    [0, 0, 1]
    """
    matrix, cell = np.nonzero(counts)
    packet = np.repeat(np.arange(len(matrix)), counts[matrix, cell])
    key = np.random.default_rng(seed).random(len(packet))
    return cell[packet][np.lexsort((key, matrix[packet]))]


# ---- complexity of packets -----------------------------------------------------------


def complexity(sequence: Packets, *, seed: int = 0) -> dict[str, Any]:
    """Compute the trace complexity of a packet sequence by compression.

    ``seed``: Of the shuffles, of U and of the Markov chain.

    Returns
    -------
    dict
        Columns of the table ``complexity``, with 95% intervals from the spread over
        windows; NaN with fewer than two packets or only one pair that could send.
    """
    pair, pairs = np.asarray(sequence.pair, np.int64), sequence.pairs
    bits = _encoder(pair, pairs)
    rng = np.random.default_rng(seed)
    # Step 1: compress the sequence, its shuffles and a uniform sequence.
    own = bits(pair)
    random = float(np.mean([bits(rng.permutation(pair)) for _ in range(SHUFFLES)]))
    even = rng.integers(0, max(1, pairs), len(pair))
    uniform = bits(even)
    values = _ratios(own, random, uniform)
    # Step 2: the spread over windows.
    borders = [
        (a, b) for a, b in pairwise(sequence.borders.tolist()) if b - a >= FEWEST
    ]
    spread = np.array(
        [
            _ratios(bits(pair[a:b]), bits(rng.permutation(pair[a:b])), bits(even[a:b]))
            for a, b in borders
        ]
    ).reshape(-1, 3)
    # Step 3: bias of the compressor on a Markov chain of known entropy rate.
    most = float(np.log2(max(1, pairs)))
    entropy, rate, chain = _markov_chain(pair, pairs, rng)
    entropy, corrected = min(entropy, most), NAN
    if rate > 0 and np.isfinite(values[0]):
        reached = _over(bits(chain), bits(rng.permutation(chain)))
        corrected = min(1.0, values[0] * (rate / entropy) / reached)
    elif rate == 0:  # deterministic transitions: no bias to correct
        corrected = values[0]
    row: dict[str, Any] = {}
    for number, name in enumerate(("temporal", "non_temporal", "trace_complexity")):
        low, high = _interval(values[number], spread[:, number])
        row |= {name: values[number], f"{name}_low": low, f"{name}_high": high}
    return row | {
        "temporal_corrected": corrected,
        "non_temporal_limit": _over(entropy, most),
        "entropy_bits": entropy,
        "markov_bits": rate,
        "bits": own,
        "shuffled_bits": random,
        "uniform_bits": uniform,
        "packets": len(pair),
        "pairs": pairs,
        "packet_size": sequence.packet_size,
        "whole": sequence.whole,
    }


def _encoder(pair: Int64, pairs: int) -> Callable[[Int64], float]:
    """Return a function that computes compressed bits per packet of pairs.

    It is NaN of less than two packets or pairs.
    """
    counts = np.bincount(pair, minlength=max(1, pairs))
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    letters = max(1, int(np.ceil(np.log2(max(2, pairs)))))
    # shift and mask of each byte
    bytes_: tuple[tuple[int, int], ...] = ((0, 255),)
    if letters > 16:
        third = -(-letters // 3)
        low = (1 << third) - 1
        bytes_ = ((32, 0), (2 * third, 255), (third, low), (0, low))
    elif letters > 8:
        bytes_ = ((letters - 8, 255), (0, (1 << letters - 8) - 1))
    width = len(bytes_)
    overhead = _compressed(b"", width)

    def bits(sequence: Int64) -> float:
        if len(sequence) < 2 or pairs < 2:
            return NAN
        number = rank[sequence]
        data = np.stack([(number >> shift) & mask for shift, mask in bytes_], axis=1)
        size = _compressed(data.astype(np.uint8).tobytes(), width) - overhead
        return 8.0 * size / len(sequence)

    return bits


def _compressed(data: bytes, width: int) -> int:
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


def _over(value: float, by: float) -> float:
    return value / by if by > 0 else NAN


def _ratios(own: float, random: float, uniform: float) -> tuple[float, float, float]:
    """Compute T, NT and their product from bits per packet."""
    temporal, other = _over(own, random), _over(random, uniform)
    return temporal, other, temporal * other


def _interval(value: float, by_window: Float64) -> tuple[float, float]:
    """Compute a 95% interval by batch means over windows; NaN below three windows."""
    means = by_window[np.isfinite(by_window)]
    if len(means) < 3:
        return NAN, NAN
    error = float(means.std(ddof=1)) / len(means) ** 0.5
    half = float(stdtrit(len(means) - 1, 0.975)) * error
    return max(0.0, value - half), value + half


def _markov_chain(
    pair: Int64, pairs: int, rng: np.random.Generator
) -> tuple[float, float, Int64]:
    """Fit a first-order Markov chain: entropy H, entropy rate h1, sampled sequence.

    The sequence is closed to a cycle: the stationary distribution of the chain is then
    exactly that of the sequence, and there are no absorbing states.
    """
    if len(pair) < 2 or pairs < 2:
        return NAN, NAN, pair
    after = np.roll(pair, -1)
    counts = np.bincount(pair, minlength=pairs)
    steps = np.unique(pair * pairs + after, return_counts=True)[1]
    entropy, both = _entropy(counts[counts > 0]), _entropy(steps)
    followers = after[np.argsort(pair, kind="stable")].tolist()
    begin, number = (np.cumsum(counts) - counts).tolist(), counts.tolist()
    state, drawn = int(pair[0]), []
    for u in rng.random(len(pair)).tolist():
        drawn.append(state)
        state = followers[begin[state] + int(u * number[state])]
    frequent = (steps == 1).sum() <= MOST_SINGLE * len(pair)
    rate = max(0.0, both - entropy) if frequent else NAN
    return entropy, rate, np.array(drawn, np.int64)


def _entropy(counts: Int64) -> float:
    """Compute the Miller-Madow corrected entropy, bits; exactly 0 of a single class."""
    total = int(counts.sum())
    share = counts / total
    bias = (len(counts) - 1) / (2 * total * np.log(2))
    return float(-(share * np.log2(share)).sum() + bias) + 0.0
