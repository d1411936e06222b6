"""Flows of a trace's all-to-alls: source, destination, bytes and start time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Trace

from .call_selection import (
    counted,
    exchanges,
    issue_times,
    select_calls,
    without_rank_local,
)
from .exporter import ExportOptions


@dataclass(frozen=True, kw_only=True, eq=False)
class Burst:
    """Flows of one exchange within one group, split at the format's maximum size."""

    group: tuple[int, ...]  # world ranks
    source: Int64  # [n] world ranks
    destination: Int64  # [n]
    bytes: Int64  # [n] > 0
    begin_ns: Int64  # [n] since the first flow; UNKNOWN_TIME at the pace "asap"


class Flows:
    """Flows of the selected all-to-alls, iterated in call order, a burst at a time.

    A flow has at most ``most`` bytes, and begins when its sender starts the call or, if
    that is unknown, issues it; with ``every_ns``, exchanges begin at that interval.
    """

    def __init__(self, trace: Trace, options: ExportOptions, most: int) -> None:
        self._trace, self._options, self._most = trace, options, most
        self._chosen = select_calls(trace, options, only=ALL_TO_ALL, timed=True)
        self._lost: Counter[str] = Counter()
        self.number = 0  # flows of the bursts so far

    def __iter__(self) -> Iterator[Burst]:
        options, most = self._options, self._most
        first = issue_times(self._trace, self._chosen.occurrences).min()
        found = exchanges(self._trace, options, self._chosen)
        for number, one in enumerate(found):
            for group in one.groups:
                members = np.array(group, np.int64)
                part = one.bytes[np.ix_(members, members)]
                sent = without_rank_local(part, self._lost)
                row, column = np.nonzero(sent)
                size = sent[row, column]
                pieces = -(-size // most)
                cut = f"flows of more than {most} bytes are cut into more"
                self._lost[cut] += int((pieces > 1).sum())
                again = np.repeat(np.arange(len(size)), pieces)
                bytes_ = np.full(len(again), most, np.int64)
                bytes_[np.cumsum(pieces) - 1] = size - (pieces - 1) * most
                source = members[row][again]
                if options.every_ns:
                    begin = np.full(len(again), number * options.every_ns, np.int64)
                elif options.pace == "asap":
                    begin = np.full(len(again), UNKNOWN_TIME, np.int64)
                else:
                    begin = one.begins[source] - first
                self.number += len(again)
                yield Burst(
                    group=group,
                    source=source,
                    destination=members[column][again],
                    bytes=bytes_,
                    begin_ns=begin,
                )

    @property
    def lost(self) -> list[str]:
        """Descriptions of omitted content, a sentence each, after the last burst."""
        compute = "computation is left out"
        return [*self._chosen.lost, *counted(self._lost), compute]
