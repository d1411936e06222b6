"""Transfers over other ranks: plans of hops, their checks, and their fluid service.

The bytes of a pair of ranks may travel by way of others, as when the ranks of a host
share their NICs.  A plan states which share of a pair's bytes each hop carries, and in
which round.  Rounds are separated by barriers; within a round, bytes are forwarded as
they arrive.  The time of a round is that of all its hops as max-min fair flows: no link
carries more in it than it can, so that every hop may also send at a constant rate, and
a relay never sends what it has not received.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.fabric import ROUTINGS

from .fluid import fluid_seconds
from .layer import transposed
from .optical import Service, crossing
from .packet_network import PacketNetwork

NOTHING = 1e-6
"""Share of a pair's bytes that counts as nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Hops:
    """Shares of pairs' bytes that ranks send to each other, round by round."""

    round: Int64  # [N] 0 and above
    pair: Int64  # [N] source W + destination of the bytes
    sender: Int64  # [N] rank
    receiver: Int64  # [N] another rank
    share: Float64  # [N] of the pair's bytes
    routing: str  # one of moetraffic.fabric.ROUTINGS
    once: bool = False  # whether a token crosses each hop once (see PacketNetwork)
    back: bool = False  # whether hops are those of a dispatch in the other direction


def hops_violations(plan: Hops, ranks: int, network: PacketNetwork) -> str:
    """Describe why hops are impossible; empty if each pair's bytes arrive."""
    if plan.routing not in ROUTINGS:
        return f"routing is one of {', '.join(ROUTINGS)}, not {plan.routing!r}"
    if plan.once and network.distinct is None:
        return (
            "a token is sent once to a host by the experts of sampled tokens, but "
            "there is no sample: capture with --token-sample"
        )
    columns = (plan.round, plan.pair, plan.sender, plan.receiver)
    if len({np.shape(c) for c in (*columns, plan.share)}) > 1 or plan.share.ndim != 1:
        return "round, pair, sender, receiver and share of hops have one length"
    if any(np.asarray(c).dtype.kind not in "iu" for c in columns):
        return "round, pair, sender and receiver of hops are integers"
    limits = (np.inf, ranks * ranks, ranks, ranks)
    for column, limit in zip(columns, limits, strict=True):
        if len(column) and not (column.min() >= 0 and column.max() < limit):
            return f"ranks of hops are 0 to {ranks - 1}, rounds 0 or more"
    if (plan.sender == plan.receiver).any():
        return "the sender and the receiver of a hop are different ranks"
    if not (plan.share >= 0).all():
        return "shares are 0 or more"
    # what each rank holds of a pair's bytes, [W * W, W]
    holds = np.zeros((ranks * ranks, ranks))
    pair = np.arange(ranks * ranks)
    holds[pair, pair // ranks] = 1
    for number in np.unique(plan.round):
        now = plan.round == number
        for rank, sign in ((plan.receiver, 1), (plan.sender, -1)):
            flat = plan.pair[now] * ranks + rank[now]
            moved = np.bincount(flat, sign * plan.share[now], holds.size)
            holds += moved.reshape(holds.shape)
        if holds.min() < -NOTHING:
            bad = int(np.argmin(holds.min(axis=1)))
            return (
                f"a rank sends more of the bytes from {bad // ranks} to {bad % ranks} "
                f"in round {number} than it has"
            )
    if (holds[pair, pair % ranks] < 1 - NOTHING).any():
        bad = int(np.argmin(holds[pair, pair % ranks]))
        return f"not all bytes from {bad // ranks} to {bad % ranks} arrive"
    return ""


def serve_hops(demand: npt.ArrayLike, plan: Hops, network: PacketNetwork) -> Service:
    """Serve the true bytes of an exchange over relays.

    Parameters
    ----------
    demand
        ``[W, W]`` bytes of token copies; the diagonal is ignored.
    plan
        Without :func:`hops_violations`.
    network
        Topology and ranks; with ``distinct`` where the plan sends tokens once.

    Returns
    -------
    Service
        All bytes are planned ones.  With ``plan.once`` fewer are sent than the demand.
    """
    truth = crossing(demand)
    ranks, total = len(truth), float(truth.sum())
    links, capacity = network.shares(plan.routing), network.topology.capacity
    seconds = 0.0
    for number in np.unique(plan.round):
        now = plan.round == number
        hop = plan.sender[now] * ranks + plan.receiver[now]
        part = truth.ravel()[plan.pair[now]] * plan.share[now]
        sent = np.asarray(np.bincount(hop, part, ranks * ranks), np.float64)
        if plan.once and network.distinct is not None:
            share = network.distinct.T if plan.back else network.distinct
            sent = sent * share.ravel()
        seconds += fluid_seconds(sent, links, capacity)
    return Service(
        completion_s=seconds,
        demand_bytes=total,
        planned_bytes=total,
        rest_bytes=0.0,
    )


@transposed.register
def _(plan: Hops, network: PacketNetwork) -> Hops:
    ranks = len(network.slots)
    return replace(
        plan,
        round=plan.round.max(initial=0) - plan.round,
        pair=plan.pair % ranks * ranks + plan.pair // ranks,
        sender=plan.receiver,
        receiver=plan.sender,
        back=not plan.back,
    )
