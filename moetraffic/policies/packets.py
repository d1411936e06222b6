r"""Packet network: plans of rounds or of hops over other ranks, and their service.

Rounds are separated by barriers.  A round ends when the most loaded link has carried
its bytes, as with rates in proportion to the bytes of flows (Varys); max-min fair rates
end at most 0.1% later, 3% where the traffic is very skewed.  Within a round, bytes are
forwarded as they arrive: no link carries more than it can, so that every hop may send
at a constant rate, and a relay never sends what it has not received.

References
----------
M. Chowdhury, Y. Zhong, I. Stoica, "Efficient Coflow Scheduling with Varys", SIGCOMM
2014: rates with which all flows end together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.fabric import (
    ROUTINGS,
    Network,
    Routes,
    forwarding_bound,
    other_rates,
    route,
    transfer_seconds,
)
from moetraffic.units import bit_rate

from .service import Service, crossing

NOTHING = 1e-6
"""Share of a pair's bytes that counts as nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """Shares of each pair's bytes that are sent in successive rounds, and routing."""

    shares: Float64  # [K, W, W]; sums over rounds are 1 off the diagonal
    routing: str = "ecmp"  # one of moetraffic.fabric.ROUTINGS


@dataclass(frozen=True, kw_only=True, eq=False)
class Hops:
    """Shares of pairs' bytes that ranks send to each other, round by round."""

    round: Int64  # [N] 0 and above
    pair: Int64  # [N] source W + destination of the bytes
    sender: Int64  # [N] rank
    receiver: Int64  # [N] another rank
    share: Float64  # [N] of the pair's bytes
    routing: str = "ecmp"  # one of moetraffic.fabric.ROUTINGS
    once: bool = False  # whether a token crosses each hop once (PacketNetwork.distinct)


@dataclass(frozen=True, kw_only=True, eq=False)
class PacketNetwork:
    """A network whose ranks exchange bytes by rounds or hops."""

    network: Network
    # [W, W] distinct tokens over token copies of two-level hops (with_distinct_tokens)
    distinct: Float64 | None = None
    _routes: dict[str, Routes] = field(default_factory=dict, repr=False)
    _parts: dict[tuple[int, ...], PacketNetwork] = field(
        default_factory=dict, repr=False
    )

    def part(self, ranks: Sequence[int]) -> PacketNetwork:
        """Return the same network with some ranks only, such as a pipeline stage's."""
        key = tuple(ranks)
        if key == tuple(range(self.network.ranks)):
            return self
        if key not in self._parts:
            chosen, distinct = np.array(key), self.distinct
            self._parts[key] = PacketNetwork(
                network=self.network.placed(self.network.slots[chosen]),
                distinct=None if distinct is None else distinct[np.ix_(chosen, chosen)],
            )
        return self._parts[key]

    def rank_grid(self) -> Int64:
        """Return the ranks of each host in the order of their slots, ``[H, g]``."""
        return self.network.rank_grid()

    def described(self) -> str:
        """Describe the rates."""
        nic = bit_rate(self.network.hosts.nic_bytes_s)
        return ", ".join([self.network.name, f"NICs {nic}", *other_rates(self.network)])

    def reference(self) -> str:
        """Name what the bound counts."""
        return "ranks and cuts, any routing and forwarding"

    def bound(self, demand: npt.ArrayLike) -> float:
        """Compute a lower bound of any routing and forwarding by hosts, seconds."""
        return float(forwarding_bound(self.network, crossing(demand)))

    def check(self, plan: object, forecast: Float64) -> str:
        """Describe why a plan is impossible; empty if each pair's bytes arrive."""
        ranks = len(forecast)
        if not isinstance(plan, Rounds | Hops):
            return f"a plan of transmission is Rounds or Hops, not {type(plan)}"
        if plan.routing not in ROUTINGS:
            return f"routing is one of {', '.join(ROUTINGS)}, not {plan.routing!r}"
        if isinstance(plan, Hops):
            return self._check_hops(plan, ranks)
        shares = np.asarray(plan.shares)
        if shares.ndim != 3 or shares.shape[1:] != (ranks, ranks):
            return f"shares are [K, {ranks}, {ranks}], but the shape is {shares.shape}"
        between = ~np.eye(ranks, dtype=bool)
        if not (shares >= 0).all() or not np.allclose(shares.sum(axis=0)[between], 1):
            return "shares are 0 or more, and those of a pair sum to 1 over the rounds"
        return ""

    def _check_hops(self, plan: Hops, ranks: int) -> str:
        if plan.once and self.distinct is None:
            return (
                "a token is sent once to a host by the experts of sampled tokens, but "
                "there is no sample: capture with --token-sample"
            )
        columns = (plan.round, plan.pair, plan.sender, plan.receiver)
        if any(np.shape(c) != (np.size(plan.share),) for c in (*columns, plan.share)):
            return "round, pair, sender, receiver and share of hops have one length"
        if any(np.asarray(c).dtype.kind not in "iu" for c in columns):
            return "round, pair, sender and receiver of hops are integers"
        limits = (np.inf, ranks * ranks, ranks, ranks)
        for column, limit in zip(columns, limits, strict=True):
            if not ((column >= 0) & (column < limit)).all():
                return f"ranks of hops are 0 to {ranks - 1}, rounds 0 or more"
        if (plan.sender == plan.receiver).any():
            return "the sender and the receiver of a hop are different ranks"
        if not (plan.share >= 0).all():
            return "shares are 0 or more"
        pair = np.arange(ranks * ranks)
        holds = np.zeros((ranks * ranks, ranks))  # what each rank has of a pair's bytes
        holds[pair, pair // ranks] = 1
        for number in np.unique(plan.round):
            now = plan.round == number
            np.add.at(holds, (plan.pair[now], plan.receiver[now]), plan.share[now])
            np.add.at(holds, (plan.pair[now], plan.sender[now]), -plan.share[now])
            if holds.min() < -NOTHING:
                bad = int(np.argmin(holds.min(axis=1)))
                return (
                    f"a rank sends more of the bytes from {bad // ranks} to "
                    f"{bad % ranks} in round {number} than it has"
                )
        arrived = holds[pair, pair % ranks]
        if (arrived < 1 - NOTHING).any():
            bad = int(np.argmin(arrived))
            return f"not all bytes from {bad // ranks} to {bad % ranks} arrive"
        return ""

    def serve(
        self, truth: npt.ArrayLike, plan: Rounds | Hops, last: object = None
    ) -> Service:
        """Serve the true bytes of token copies ``[W, W]`` round by round.

        The plan has no objection of :meth:`check`.  All bytes are planned ones; a plan
        that sends tokens once sends fewer.
        """
        sent = crossing(truth)
        total, ranks = float(sent.sum()), len(sent)
        if not total:
            return Service(completion_s=0.0, demand_bytes=0.0, planned_bytes=0.0)
        if isinstance(plan, Rounds):
            rounds = sent * plan.shares
        else:
            shape = (int(plan.round.max(initial=-1)) + 1, ranks, ranks)
            rounds = np.zeros(shape)
            moved = sent.ravel()[plan.pair] * plan.share
            np.add.at(rounds, (plan.round, plan.sender, plan.receiver), moved)
            if plan.once and self.distinct is not None:
                rounds *= self.distinct
        if plan.routing not in self._routes:
            self._routes[plan.routing] = route(self.network, routing=plan.routing)
        seconds = transfer_seconds(self._routes[plan.routing], rounds).sum()
        return Service(
            completion_s=float(seconds), demand_bytes=total, planned_bytes=total
        )
