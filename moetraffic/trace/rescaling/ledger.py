"""What a scale does to the bytes of a trace's all-to-alls: completed, lost, sent."""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.units import byte_size


@dataclass(kw_only=True)
class Ledger:
    """Bytes of all matrices that went through a scale, exact."""

    captured: int = 0  # in the trace
    captured_inside: int = 0  # of these, what ranks kept for themselves
    completed: int = 0  # of missing records
    lost: int = 0  # of ranks that are left out, or rank-local bytes left out
    sent: int = 0  # by the replay, after the factor
    inside: int = 0  # of these, what ranks send to themselves
    matrices: int = 0
    operations_left_out: int = 0  # of ranks that are left out

    def lines(self) -> tuple[str, ...]:
        """Describe the sums for people; what is zero is left out."""
        parts = [
            f"{byte_size(self.captured)} captured ({byte_size(self.captured_inside)} "
            f"of them rank-local)"
        ]
        if self.completed:
            parts.append(f"{byte_size(self.completed)} completed")
        if self.lost:
            parts.append(f"{byte_size(self.lost)} lost")
        parts.append(
            f"{byte_size(self.sent)} sent ({byte_size(self.inside)} of them rank-local)"
        )
        lines = [f"bytes of {self.matrices} all-to-alls: {', '.join(parts)}"]
        if self.operations_left_out:
            lines.append(
                f"operations of ranks that are left out: {self.operations_left_out}"
            )
        return tuple(lines)
