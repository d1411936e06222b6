"""Settings of a benchmark (collectives, sizes, iterations), and its measurement.

Sizes, their rounding, warm-up and defaults are those of nccl-tests (README,
"Arguments"): from ``-b`` to ``-e`` by a factor ``-f`` or a step ``-i``, K, M, G are
powers of 1024, and a size is rounded down to whole elements per rank.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import ReplayError
from moetraffic.launch import Heartbeat
from moetraffic.patterns.collectives import COLLECTIVES, UNEVEN, uneven_bytes
from moetraffic.replay.local import start_ranks
from moetraffic.replay.results.output import to_json
from moetraffic.units import message_size

from .result import Bench

DTYPES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8}
"""Size in bytes of the element types in which the check is exact."""

DIVIDED = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Collectives whose size consists of one part per rank."""

ONLY_OUT = frozenset({"all_to_all", UNEVEN, "send_recv", "gather", "scatter"})
"""Collectives without an in-place form in nccl-tests or in torch."""

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})

BACKENDS = ("gloo", "nccl")

_MOST_SIZES = 1000
_START_S = 120.0  # to import torch and connect, on a busy host


@dataclass(frozen=True, kw_only=True)
class BenchmarkCall:
    """Timed call of a benchmark: a collective at a size, in place or out of place."""

    collective: str
    size_bytes: int
    place: str  # "out" or "in"

    def __str__(self) -> str:
        place = "in place" if self.place == "in" else "out of place"
        return f"{self.collective} of {self.size_bytes} B, {place}"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Settings of a benchmark, the same on all ranks."""

    collectives: tuple[str, ...] = ("all_reduce",)
    sizes: tuple[int, ...] = ()  # bytes; as requested, not yet rounded
    warmup: int = 5
    iterations: int = 20
    check: int = 1  # iterations of which every element is checked; 0: none
    dtype: str = "float32"
    backend: str = "gloo"
    timeout_s: float = 60.0
    matrix: tuple[tuple[int, ...], ...] = ()  # bytes, of an uneven all-to-all
    platform: str = ""
    protocol: str = ""

    def __post_init__(self) -> None:
        wrong = [c for c in self.collectives if c not in COLLECTIVES]
        if wrong or not self.collectives:
            raise ReplayError(
                f"collectives are {', '.join(COLLECTIVES)} or all, not "
                f"{', '.join(wrong) or 'none'}: choose among these"
            )
        if self.dtype not in DTYPES:
            raise ReplayError(
                f"elements are {', '.join(DTYPES)}, in which sums are exact, not "
                f"{self.dtype!r}: choose one"
            )
        if self.iterations < 1 or self.warmup < 0 or self.check < 0:
            raise ReplayError(
                "1 iteration or more is timed and 0 or more warm up and are checked, "
                f"but they are {self.iterations}, {self.warmup} and {self.check}: "
                "raise them"
            )
        if not 0 < self.timeout_s < float("inf"):
            raise ReplayError(
                f"the timeout must be a number above 0 s, but is {self.timeout_s:g}: "
                "raise --timeout"
            )
        if self.backend not in BACKENDS:
            raise ReplayError(
                f"collectives are measured with {', '.join(BACKENDS)}, not "
                f"{self.backend!r}: choose one"
            )
        if (UNEVEN in self.collectives) != bool(self.matrix):
            raise ReplayError(
                f"{UNEVEN} and a matrix belong together, but there is "
                f"{'no' if not self.matrix else 'only a'} matrix: give --matrix or "
                f"--trace with {UNEVEN}"
            )

    @property
    def element_bytes(self) -> int:
        """Size of an element in bytes."""
        return DTYPES[self.dtype]

    def calls(self, ranks: int) -> tuple[BenchmarkCall, ...]:
        """Return the timed calls for a number of ranks, in execution order."""
        found = []
        for collective in self.collectives:
            for size in dict.fromkeys(self.rounded(collective, ranks)):
                for place in ("out", "in"):
                    if place == "out" or collective not in ONLY_OUT:
                        found.append(
                            BenchmarkCall(
                                collective=collective, size_bytes=size, place=place
                            )
                        )
        return tuple(found)

    def rounded(self, collective: str, ranks: int) -> list[int]:
        """Round sizes down to whole elements per rank, and drop sizes of zero."""
        if collective == UNEVEN:
            sizes = self.sizes or (uneven_bytes(self.matrix)[0],)
            made = [uneven_bytes(self.scaled(size))[0] for size in sizes]
        else:
            unit = self.element_bytes * (ranks if collective in DIVIDED else 1)
            made = [size // unit * unit for size in self.sizes]
        return [size for size in made if size]

    def scaled(self, size: int) -> Int64:
        """Scale the byte matrix so that its largest row or column sum is ``size``.

        Entries are whole elements, so the sum may be slightly smaller.
        """
        cells = np.array(self.matrix, np.float64)
        largest = max(cells.sum(axis=0).max(), cells.sum(axis=1).max())
        elements = np.floor(cells * (size / largest) / self.element_bytes + 1e-9)
        return np.asarray(elements, np.int64) * self.element_bytes


def validate_sweep(sweep: Sweep, ranks: int) -> None:
    """Check that a benchmark can run on a number of ranks.

    Raises
    ------
    ReplayError
        If there is only one rank, no size is large enough, or the matrix has a
        different number of ranks.
    """
    if ranks < 2:
        raise ReplayError(
            f"collectives need 2 ranks or more, but there is {ranks}: give --nproc 2"
        )
    if sweep.matrix and len(sweep.matrix) != ranks:
        raise ReplayError(
            f"the matrix is of {len(sweep.matrix)} ranks, but {ranks} are to be "
            f"started: give --nproc {len(sweep.matrix)}"
        )
    for collective in sweep.collectives:
        if not sweep.rounded(collective, ranks):
            raise ReplayError(
                f"a size holds a whole element of {sweep.element_bytes} B for each of "
                f"{ranks} ranks, but none does for {collective}: raise -e"
            )


def size_range(
    begin: str, end: str, *, factor: float | None, step: str | None
) -> tuple[int, ...]:
    """List the sizes in bytes from begin to end, both included if reached.

    Raises
    ------
    ReplayError
        If the bounds or the increment are invalid, or there are too many sizes.

    Examples
    --------
    >>> size_range("1K", "4K", factor=2, step=None)
    (1024, 2048, 4096)
    >>> size_range("8", "20", factor=None, step="8")
    (8, 16)
    """
    first, last = (message_size(text, error=ReplayError) for text in (begin, end))
    adding = message_size(step, error=ReplayError) if step is not None else 0
    times = factor if factor is not None else (0.0 if adding else 2.0)
    grows = bool(adding) != bool(times) and (bool(adding) or times > 1)
    if not (grows and first <= last):
        if factor is None and step is None:
            raise ReplayError(
                f"sizes go from -b up to -e, but are from {begin} to {end}: swap them"
            )
        given = {"factor": factor, "step": step}
        by = " and ".join(f"{n} {v}" for n, v in given.items() if v is not None)
        raise ReplayError(
            "sizes go from -b up to -e by a factor -f above 1 or a step -i, but are "
            f"from {begin} to {end} by {by}: correct them"
        )
    found = [first]
    while len(found) <= _MOST_SIZES:
        following = found[-1] + adding if adding else int(found[-1] * times)
        following = max(following, found[-1] + 1)
        if following > last:
            return tuple(found)
        found.append(following)
    raise ReplayError(
        f"at most {_MOST_SIZES} sizes are measured, but from {begin} to {end} there "
        "are more: raise -f or -i"
    )


def matrix_rows(
    cells: Sequence[Sequence[float]], name: str
) -> tuple[tuple[int, ...], ...]:
    """Check a byte matrix and return its rows as integers.

    Raises
    ------
    ReplayError
        If the matrix is not square, has an invalid entry, or is all zero.
    """
    flat = list(chain.from_iterable(cells))
    square = all(len(row) == len(cells) for row in cells)
    sound = all(0 <= v < 2**46 and v == int(v) for v in flat if v == v)
    if not (square and len(cells) > 1 and sound and sum(flat) > 0):
        raise ReplayError(
            f"{name} is no matrix of bytes: give n rows of n whole numbers of 0 or "
            "more, rows send, columns receive"
        )
    return tuple(tuple(int(v) for v in row) for row in cells)


def measure(
    sweep: Sweep, ranks: int, *, on_event: Callable[[Heartbeat], None] | None = None
) -> Bench:
    """Run a benchmark on ranks that are started on this host.

    Raises
    ------
    MoetrafficError
        If it cannot start, or if a rank fails: names the rank and the operation.
    Interrupted
        After SIGINT or SIGTERM, when all ranks have ended.
    """
    each = sweep.check + sweep.warmup + sweep.iterations
    names = [str(call) for call in sweep.calls(ranks)]
    with tempfile.TemporaryDirectory(prefix="moetraffic-") as folder:
        settings = Path(folder) / "sweep.json"
        settings.write_text(to_json("moetraffic sweep", sweep))
        return start_ranks(
            Bench,
            ["moetraffic.replay.bench", "--sweep", str(settings)],
            ranks=ranks,
            start_s=max(_START_S, 2 * sweep.timeout_s),
            timeout_s=sweep.timeout_s,
            on_event=on_event,
            namer=lambda _, n: names[min(n // each, len(names) - 1)],
        )
