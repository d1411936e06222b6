"""Options by which a trace is rescaled, as they are written on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from moetraffic.errors import ReplayError
from moetraffic.trace.dispatchers import redispatch
from moetraffic.trace.iterations import listed_numbers
from moetraffic.trace.trace import Trace

from . import missing_rows, rank_map
from .rank_map import RankMap
from .rescaled_trace import rescaled
from .trace_scaling import TraceScale


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What was asked for, as people write it.

    Raises
    ------
    ReplayError
        If two ways to choose ranks are given, or a rule is not known.
    """

    fold: str = ""  # "4", "4:strided" or "nodes"
    expand: str = ""  # "128"
    ranks: str = ""  # "0,4:8"
    rank_map: str = ""  # a file, or "0,0,1,-"
    factor: Fraction = Fraction(1)  # of all bytes
    self_traffic: bool = True  # whether a rank sends to itself
    missing: str = ""  # a rule of missing_rows.RULES; "": refuse gaps
    dispatcher: str = ""  # of dispatchers.DISPATCHERS; "": the captured exchanges
    ranks_per_node: int = 0  # of the dispatcher; 0: the trace's nodes

    def __post_init__(self) -> None:
        given = [f"--{name}" for name, text in self._ways().items() if text]
        if len(given) > 1:
            raise ReplayError(
                "ranks are mapped in one way, but there are "
                f"{' and '.join(given)}: give one, or say it all with --rank-map"
            )
        if self.missing and self.missing not in missing_rows.RULES:
            raise ReplayError(
                "missing records are completed by "
                f"{' or '.join(missing_rows.RULES)}, not {self.missing[:40]!r}: "
                "choose one"
            )
        if self.ranks_per_node < 0 or (self.ranks_per_node and not self.dispatcher):
            raise ReplayError(
                "--ranks-per-node is 1 or more, and used by a dispatcher, but is "
                f"{self.ranks_per_node} with {self.dispatcher or 'no'} --dispatcher: "
                "change them"
            )

    def __bool__(self) -> bool:
        return self != Scaling()

    def scale(self, trace: Trace) -> TraceScale | None:
        """The scale of a trace, None where nothing is asked for.

        Raises
        ------
        ReplayError
            If the trace's ranks cannot be mapped so.
        """
        if not self:
            return None
        if self.dispatcher:
            trace = redispatch(
                trace, self.dispatcher, ranks_per_node=self.ranks_per_node
            )
        return TraceScale(
            trace,
            self._map(trace),
            self_traffic=self.self_traffic,
            factor=self.factor,
            missing=self.missing,
            dispatcher=self.dispatcher,
        )

    def arguments(self) -> list[str]:
        """The options of the command line that say the same."""
        line = []
        for name, text in self._ways().items():
            if text:
                line += [f"--{name}", text]
        if self.factor != 1:
            line += ["--bytes", f"x{self.factor}"]
        if not self.self_traffic:
            line += ["--self-traffic", "drop"]
        if self.missing:
            line += ["--complete-missing", self.missing]
        if self.dispatcher:
            line += ["--dispatcher", self.dispatcher]
        if self.ranks_per_node:
            line += ["--ranks-per-node", str(self.ranks_per_node)]
        return line

    def _ways(self) -> dict[str, str]:
        return {
            "fold": self.fold,
            "expand": self.expand,
            "ranks": self.ranks,
            "rank-map": self.rank_map,
        }

    def _map(self, trace: Trace) -> RankMap:
        world = trace.meta.world
        if self.fold == "nodes":
            return rank_map.fold_nodes(trace.meta.nodes)
        if self.fold:
            number, _, rule = self.fold.partition(":")
            ranks = rank_map.count_of(number, "--fold")
            return rank_map.fold(world, ranks, rule or "contiguous")
        if self.expand:
            return rank_map.expand(world, rank_map.count_of(self.expand, "--expand"))
        if self.ranks:
            return rank_map.subset(
                world, listed_numbers(self.ranks, "ranks", ReplayError)
            )
        if self.rank_map:
            return rank_map.explicit(world, rank_map.map_of(self.rank_map))
        return rank_map.identity_map(world)


def rescale(trace: Trace, scaling: Scaling) -> Trace:
    """Compute the trace of the same run on other ranks, or with other bytes.

    The result is read lazily from ``trace``, which must stay open; it is ``trace``
    itself where nothing is asked for.

    Raises
    ------
    ReplayError
        If the trace's ranks cannot be mapped so.
    """
    scale = scaling.scale(trace)
    return trace if scale is None else rescaled(scale)
