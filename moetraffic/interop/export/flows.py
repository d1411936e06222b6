"""Flows of a trace's all-to-alls: source, destination, bytes and start time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moetraffic.trace import UNKNOWN_TIME, Trace

from .call_selection import CallSelection, ExportedExchange, Int64, exchanges, moments
from .options import ExportOptions


@dataclass(frozen=True, kw_only=True, eq=False)
class Burst:
    """Flows of one exchange within one group, split at the format's maximum size."""

    exchange: ExportedExchange
    group: tuple[int, ...]  # world ranks
    source: Int64  # [n] world ranks
    destination: Int64  # [n]
    bytes: Int64  # [n] > 0
    begin_ns: Int64  # [n] since the first flow; UNKNOWN_TIME at the pace "asap"


@dataclass(kw_only=True)
class Tally:
    """Counts of exported flows, split flows and omitted rank-local bytes."""

    flows: int = 0
    own_bytes: int = 0  # rank-local bytes
    cut: int = 0  # flows that were split

    def sentences(self, most: int) -> list[str]:
        """Describe omitted bytes and split flows, one sentence each."""
        said = []
        if self.own_bytes:
            said.append(
                f"{self.own_bytes} bytes that ranks kept for themselves are left out"
            )
        if self.cut:
            said.append(f"{self.cut} flows of more than {most} bytes are cut into more")
        return said


def bursts(
    trace: Trace, options: ExportOptions, chosen: CallSelection, most: int, tally: Tally
) -> Iterator[Burst]:
    """Iterate over the flows of the selected all-to-alls, in call order.

    A flow begins when its sender starts the call or, if that is unknown, issues it;
    with ``every_ns``, exchanges begin at that interval.

    Parameters
    ----------
    trace, options, chosen
        See :func:`.call_selection.exchanges`.
    most
        Maximum bytes of a flow in the format.
    tally
        Counts to which the flows are added.
    """
    first = _first(trace, options, chosen)
    for number, one in enumerate(exchanges(trace, options, chosen)):
        for group in one.groups:
            members = np.array(group, np.int64)
            sent = one.bytes[np.ix_(members, members)].copy()
            tally.own_bytes += int(np.trace(sent))
            np.fill_diagonal(sent, 0)
            row, column = np.nonzero(sent)
            size = sent[row, column]
            pieces = -(-size // most)
            tally.cut += int((pieces > 1).sum())
            again = np.repeat(np.arange(len(size)), pieces)
            part = np.full(len(again), most, np.int64)
            last = np.cumsum(pieces) - 1
            part[last] = size - (pieces - 1) * most
            source = members[row][again]
            if options.every_ns:
                begin = np.full(len(part), number * options.every_ns, np.int64)
            elif options.pace == "asap":
                begin = np.full(len(part), UNKNOWN_TIME, np.int64)
            else:
                begin = one.begins[source] - first
            tally.flows += len(part)
            yield Burst(
                exchange=one,
                group=group,
                source=source,
                destination=members[column][again],
                bytes=part,
                begin_ns=begin,
            )


def _first(trace: Trace, options: ExportOptions, chosen: CallSelection) -> int:
    """Return the begin of the first call, ns of rank 0's clock."""
    if options.every_ns or options.pace == "asap":
        return 0
    issued, _ = moments(trace, chosen.occurrences)
    return int(issued.min())
