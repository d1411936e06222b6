"""Settings of a benchmark: collectives, sizes, iterations, and what is timed.

Sizes, their rounding, warm-up and defaults are those of nccl-tests (README,
"Arguments"): from ``-b`` to ``-e`` by a factor ``-f``, K, M, G are powers of 1024, and
a size is rounded down to whole elements per rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.errors import ReplayError
from moetraffic.patterns.collectives import COLLECTIVES, UNEVEN
from moetraffic.spelling import check_choice
from moetraffic.units import message_size

DTYPES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8}
"""Size in bytes of the element types in which the check is exact."""

MEASURED = tuple(name for name in COLLECTIVES if name != UNEVEN)

DIVIDED = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
"""Collectives whose size is divided among the ranks."""

MOST_SIZES = 100

START_S = 120.0
"""Time to import torch and connect, on a busy host, s."""


Timed = tuple[str, int]
"""Collective and size in bytes of a timed call."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Settings of a benchmark, the same on all ranks."""

    collectives: tuple[str, ...] = ("all_reduce",)
    sizes: tuple[int, ...] = ()  # bytes; as requested, not yet rounded
    warm_up: int = 5
    iterations: int = 20
    check: int = 1  # iterations of which every element is checked; 0: none
    dtype: str = "float32"
    backend: str = "gloo"
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name in self.collectives:
            check_choice("a collective", name, MEASURED, ReplayError)
        check_choice("an element type", self.dtype, DTYPES, ReplayError)

    @property
    def silence_s(self) -> float:
        """Time without progress after which a rank counts as hung."""
        return 1.5 * self.timeout_s + 2.0

    def name(self, ranks: int, n: int) -> str:
        """Return the name of the n-th call of a rank."""
        calls = self.calls(ranks)
        each = self.check + self.warm_up + self.iterations
        return "{} of {} B".format(*calls[min(n // each, len(calls) - 1)])

    @property
    def element_bytes(self) -> int:
        """Size of an element in bytes."""
        return DTYPES[self.dtype]

    def calls(self, ranks: int) -> list[Timed]:
        """Return the timed calls for a number of ranks, in execution order.

        Raises
        ------
        ReplayError
            If there is only one rank, or no size is large enough.
        """
        if ranks < 2:
            raise ReplayError(
                f"collectives need 2 ranks or more, but there is {ranks}: give "
                "--nproc 2"
            )
        calls: list[Timed] = []
        for name in self.collectives:
            sizes = self.rounded(name, ranks)
            if not sizes:
                raise ReplayError(
                    f"a size holds a whole element of {self.element_bytes} B for each "
                    f"of {ranks} ranks, but none does for {name}: raise -e"
                )
            calls += [(name, size) for size in sizes]
        return calls

    def rounded(self, collective: str, ranks: int) -> list[int]:
        """Round sizes down to whole elements per rank, without zero and repetitions."""
        unit = self.element_bytes * (ranks if collective in DIVIDED else 1)
        made = [size // unit * unit for size in self.sizes]
        return list(dict.fromkeys(filter(None, made)))


def size_range(begin: str, end: str, factor: float) -> tuple[int, ...]:
    """List the sizes in bytes from begin to end, both included if reached.

    Raises
    ------
    ReplayError
        If the bounds or the factor are invalid, or there are too many sizes.

    Examples
    --------
    >>> size_range("1K", "4K", 2)
    (1024, 2048, 4096)
    """
    first, last = (message_size(text, error=ReplayError) for text in (begin, end))
    if not (first <= last and 1 < factor < float("inf")):
        raise ReplayError(
            "sizes go from -b up to -e by a factor -f above 1, but are from "
            f"{begin} to {end} by {factor:g}: correct them"
        )
    sizes = [first]
    while (following := max(int(sizes[-1] * factor), sizes[-1] + 1)) <= last:
        sizes.append(following)
        if len(sizes) > MOST_SIZES:
            raise ReplayError(
                f"at most {MOST_SIZES} sizes are measured, but from {begin} to {end} "
                "there are more: raise -f"
            )
    return tuple(sizes)
