"""Restrict a captured routing to experts on few nodes for each token.

As in DeepSeek-V3 a token's experts lie on at most M nodes.  Its gate would choose the
nodes by their scores, which traces do not have.  Here the nodes are those that hold
most of the token's experts, at random among equals, and each expert elsewhere is
replaced by another one on these nodes, drawn in proportion to how often the token's
rank chose it in this exchange.  Tokens on at most M nodes do not change.

The demand follows the sample of tokens: which share of an expert's copies leaves it,
and where these go.  It is exact where the sample has all tokens.

References
----------
DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 2.1.2 (node-limited routing).
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.errors import TraceError
from moetraffic.trace.choices import pack, unpack
from moetraffic.trace.model import ROUTING
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.trace import Trace

_SEED = 0x6E6F6465  # all ranks draw the same


def limit_nodes(trace: Trace, most: int, node_of: Int64) -> Trace:
    """Restrict the experts of each token to at most ``most`` nodes, 1 or more.

    The trace has samples of tokens and no dropped copies; ``node_of`` is the ``[R]``
    node of each world rank.  The result has other demand and samples.  Stored bytes of
    exchanges are unchanged: it is for :func:`~moetraffic.trace.dispatchers.redispatch`,
    which computes them.
    """
    routings = [n for n, s in enumerate(trace.sites) if s.operation == ROUTING]
    if trace.meta.k == 1:
        return trace
    made = {
        name: np.array(panel.read(0, panel.shape[0]))
        for name, panel in trace.panels.items()
        if name.startswith(("demand_", "choices_"))
    }
    for number in routings:
        site = trace.sites[number]
        at = np.flatnonzero(trace.occurrences.site == number)
        if len(at) and (not site.choices or trace.any_dropped(at)):
            dropped = "copies that are, or may be, dropped"
            raise TraceError(
                "a limit of nodes needs the experts of single tokens, and no dropped "
                f"copies, but {trace.name} has "
                f"{dropped if site.choices else 'no sample of tokens'}: "
                "capture with --token-sample and without a capacity"
            )
        ranks = trace.groups[site.group].ranks
        of_demand = f"demand_{len(ranks)}x{site.experts}"
        of_choices = f"choices_{len(ranks)}x{site.experts}x{site.choices}"
        rows = [trace.rows_of(name)[at].tolist() for name in (of_demand, of_choices)]
        for occurrence, of, sample in zip(at.tolist(), *rows, strict=True):
            when = int(trace.occurrences.iteration[occurrence])
            holder = trace.holder(site.layer, site.group, when)
            demand, bits = made[of_demand][of], made[of_choices][sample]
            before = unpack(bits, site.experts)
            node = node_of[list(ranks)][holder]
            rng = np.random.default_rng([_SEED, occurrence])
            # one rank at a time bounds the memory
            after = np.concatenate(
                [
                    _limited(before[w : w + 1], node, most, demand[w : w + 1], rng)
                    for w in range(len(ranks))
                ]
            )
            bits[...] = pack(after)
            demand[...] = _moved(demand.astype(np.int64), before, after)
    return trace.replaced(
        panels=trace.panels | {name: ArrayPanel(array) for name, array in made.items()}
    )


def _limited(
    chosen: Bool, node: Int64, most: int, demand: Int64, rng: np.random.Generator
) -> Bool:
    """Restrict tokens ``[W, S, E]``; ``node`` ``[E]``, ``demand`` ``[W, E]``."""
    held = node[:, None] == np.unique(node)  # [E, nodes]
    count = chosen.astype(np.int64) @ held.astype(np.int64)  # [W, S, nodes]
    by_count = np.argsort(-(count + rng.random(count.shape)), axis=-1)
    kept = np.zeros(count.shape, bool)
    np.put_along_axis(kept, by_count[..., :most], True, axis=-1)
    allowed = kept @ held.T  # [W, S, E]
    lost = (chosen & ~allowed).sum(axis=-1, keepdims=True)
    free = allowed & ~chosen
    if (lost > free.sum(axis=-1, keepdims=True)).any():
        raise TraceError(
            f"{most} of {held.shape[1]} nodes must have as many experts as a token, "
            f"which has {int(chosen.sum(axis=-1).max())}, but a node has "
            f"{int(held.sum(axis=0).min())}: raise --node-limit"
        )
    # the largest of u^(1/w) are a weighted sample without replacement
    drawn = np.log(rng.random(chosen.shape)) / (demand[:, None, :] + 1)
    order = np.argsort(np.where(free, -drawn, np.inf), axis=-1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(order.shape[-1])[None, None], axis=-1)
    return np.asarray((chosen & allowed) | (place < lost), bool)


def _moved(demand: Int64, before: Bool, after: Bool) -> Int64:
    """Move copies ``[W, E]`` as the sampled tokens ``[W, S, E]`` moved."""
    sampled = before.sum(axis=1)
    stayed = (before & after).sum(axis=1)
    added = (after & ~before).sum(axis=1)
    overall = stayed.sum() / max(int(sampled.sum()), 1)
    share = np.where(sampled > 0, stayed / np.maximum(sampled, 1), overall)
    left = (demand * (1 - share)).sum(axis=1, keepdims=True)
    # a rank without sampled moves: as all ranks
    into = np.where(added.any(axis=1, keepdims=True), added, added.sum(axis=0) + 1e-9)
    wanted = demand * share + left * into / into.sum(axis=1, keepdims=True)
    # rounded sums: each rank keeps its number of copies
    sums = np.rint(np.cumsum(wanted, axis=1))
    return np.asarray(np.diff(sums, axis=1, prepend=0), np.int64)
