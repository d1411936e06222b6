"""What a scale does to the bytes of a trace's all-to-alls: kept, moved inside, lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.units import byte_size


@dataclass(kw_only=True)
class Ledger:
    """Sums over all matrices that went through a scale, bytes, exact.

    They balance: ``captured + from_peers + by_mean = left_out + self_left_out + kept``
    and ``kept = between + inside``; what is sent is ``kept`` times the factor, plus
    ``rounding``.
    """

    factor: Fraction = Fraction(1)
    captured: int = 0  # in the trace, also what ranks kept for themselves
    captured_inside: int = 0  # of these, what ranks kept
    from_peers: int = 0  # completed from other phases
    by_mean: int = 0  # completed by a mean
    left_out: int = 0  # to or from ranks that are left out
    self_left_out: int = 0  # what ranks would send themselves, left out when asked
    between: int = 0  # between different ranks of the replay
    inside: int = 0  # from ranks of the replay to themselves
    folded: int = 0  # between ranks that are kept, now inside one
    spread: int = 0  # inside a rank that is kept, now between several
    sent: int = 0  # what the replay moves, after the factor
    matrices: int = 0
    operations_left_out: int = 0  # of ranks that are left out

    def take(
        self, *, captured: Int64, known: Int64, moved: Int64, kept: Int64, sent: Int64
    ) -> None:
        """Count some matrices at every stage.

        ``captured`` are ``[b, W, W]`` as in the trace; ``known`` ``[b, w, w]``
        completed, of the members that are kept; ``moved`` ``[b, W', W']`` between ranks
        of the replay; ``kept`` the same, without what is left out of the diagonal;
        ``sent`` that times the factor.
        """
        inside = _diagonal(moved)
        before = _diagonal(known)
        self.matrices += len(captured)
        self.captured += int(captured.sum())
        self.captured_inside += _diagonal(captured)
        self.self_left_out += int(moved.sum()) - int(kept.sum())
        self.inside += _diagonal(kept)
        self.between += int(kept.sum()) - _diagonal(kept)
        self.folded += max(0, inside - before)
        self.spread += max(0, before - inside)
        self.sent += int(sent.sum())

    @property
    def present(self) -> int:
        """Bytes of the trace with those that were completed."""
        return self.captured + self.from_peers + self.by_mean

    @property
    def kept(self) -> int:
        """Bytes that the replay moves, before the factor."""
        return self.between + self.inside

    @property
    def rounding(self) -> Fraction:
        """What rounding adds to, or takes from, the factor's exact product."""
        return self.sent - self.factor * self.kept

    def lines(self) -> tuple[str, ...]:
        """The ledger in sentences for people; what is zero is left out."""
        before = byte_size(self.captured - self.captured_inside)
        kept = [f"{byte_size(self.between)} between ranks (before {before})"]
        if self.inside:
            kept.append(f"{byte_size(self.inside)} inside a rank")
        moved = {"into ranks": self.folded, "out of ranks": self.spread}
        lost = {
            "of ranks that are left out": self.left_out,
            "of rank-local bytes": self.self_left_out,
        }
        told = [
            f"bytes kept {byte_size(self.kept)} of {byte_size(self.present)} in "
            f"{self.matrices} all-to-alls: {', '.join(kept)}"
        ]
        if any(moved.values()):
            told.append(f"bytes moved: {_parts(moved)}")
        if any(lost.values()):
            told.append(f"bytes lost: {_parts(lost)}")
        if self.operations_left_out:
            told.append(
                f"operations of ranks that are left out: {self.operations_left_out}"
            )
        if self.from_peers or self.by_mean:
            told.append(
                f"bytes completed {byte_size(self.from_peers)} from peers' records, "
                f"{byte_size(self.by_mean)} by the mean"
            )
        if self.factor != 1:
            told.append(
                f"bytes sent {byte_size(self.sent)}: each cell times {self.factor}, to "
                f"the nearest multiple of its alignment, which adds "
                f"{float(self.rounding):+.1f} B"
            )
        return tuple(told)


def _diagonal(wire: Int64) -> int:
    return int(np.trace(wire, axis1=1, axis2=2).sum())


def _parts(sums: Mapping[str, int]) -> str:
    return ", ".join(f"{byte_size(n)} {where}" for where, n in sums.items() if n)
