"""Interface of samples of traffic generators: synthetic token counts, block by block.

:mod:`.writing.trace_writer` makes a trace of any of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from moetraffic.arrays import Int32

from .scenario import Scenario

BLOCK_BYTES = 32 << 20
"""Bytes of counts that are drawn at a time."""


class Demand(Protocol):
    """Token copies of every iteration, exchange, rank and expert, drawn on demand."""

    @property
    def scenario(self) -> Scenario:
        """Scenario of the sample: ranks, experts, tokens."""
        ...

    @property
    def iterations(self) -> int:
        """Number of iterations n."""
        ...

    @property
    def about(self) -> str:
        """Provenance for the metadata of the sample."""
        ...

    @property
    def repeats_from(self) -> int:
        """First iteration that repeats those of the fitted run again; -1: none does."""
        ...

    def blocks(self, rows: int = 0) -> Iterator[tuple[int, Int32]]:
        """The counts in the order of iterations.

        Parameters
        ----------
        rows
            Iterations of a block, the last may be shorter; 0: as many as fit
            BLOCK_BYTES.  The counts do not depend on it.

        Yields
        ------
        tuple
            First iteration, and ``[b, X, R, E]`` int32 token copies that rank r routes
            to expert e in exchange x of ``scenario.exchanges``, those dropped over
            capacity included: each row sums to k times the tokens of a rank.
        """
        ...


def block_rows(demand_cells: int, rows: int) -> int:
    """Iterations of a block: as asked for, or as many as fit BLOCK_BYTES.

    Parameters
    ----------
    demand_cells
        Cells ``X R E`` of an iteration.
    rows
        What was asked for, 0: not said.
    """
    return rows or max(1, BLOCK_BYTES // (4 * max(1, demand_cells)))
