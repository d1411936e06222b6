"""Ways in which tokens travel to experts on several nodes, and how often they do.

Names and stages are those of :mod:`moetraffic.trace.what_if.dispatchers`, which
computes them from captured tokens; here the choice of experts is uniform.

References
----------
He et al., "FasterMoE", PPoPP 2022; Nie et al., "HetuMoE", arXiv 2203.14685 (two-level);
DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 3.2.2 (once for each node).
"""

from __future__ import annotations

import numpy as np

from .layouts.configuration import Configuration
from .layouts.parallelism import DEDUPLICATED, DISPATCHERS
from .rules import Rule
from .values import Values, where


def distinct(k: Values, experts: Values, parts: Values) -> Values:
    """Expected number of equal parts of some experts in which a token has an expert.

    Of k distinct experts, equally likely among E, a part of E/P gets none with
    probability ``C(E - E/P, k) / C(E, k)`` (hypergeometric).

    Parameters
    ----------
    k, experts, parts
        Numbers, or arrays that broadcast; each part has as many experts.

    Examples
    --------
    >>> round(float(distinct(2, 4, 2)), 4)  # the second is 1 of 3 others
    1.6667
    """
    from scipy.special import gammaln  # no verb waits for it that does without

    others = experts - experts / parts
    none = np.exp(
        gammaln(np.maximum(others, 0) + 1)
        - gammaln(np.maximum(others - k, 0) + 1)
        + gammaln(np.maximum(experts - k, 0) + 1)
        - gammaln(experts + 1)
    )
    return parts * (1 - where(others >= k, none, 0.0))


def forwarded(c: Configuration) -> tuple[Values, Values]:
    """Times that a token is sent between nodes, and from there to ranks, per copy.

    Both count what stays on the own node and rank, as all-to-alls do.  With a node
    limit the experts of a token are equally likely among those of so many nodes.
    """
    experts = np.maximum(c.sizes.experts, 1)
    nodes = c.ep / c.near
    limit = np.minimum(where(c.node_limit > 0, c.node_limit, nodes), nodes)
    k, chosen = np.maximum(c.k, 1), experts * limit / nodes
    once = c.dispatcher == DEDUPLICATED
    to_nodes = where(once, distinct(k, chosen, limit) / k, 1.0)
    to_ranks = where(once, distinct(k, chosen, limit * c.near) / k, 1.0)
    return to_nodes, to_ranks


def dispatcher_rules(c: Configuration) -> list[Rule]:
    """The rules of a configuration's dispatcher, or of arrays of them."""
    per, stride = c.gpus_per_node, c.expert_tp
    apart = (c.dispatcher > 0) & (c.ep > 1)
    once = c.dispatcher == DEDUPLICATED
    span = c.ep * stride
    whole = np.maximum(per, 1)
    even = ((whole % stride == 0) | (stride % whole == 0)) & (
        (span % whole == 0) | (whole % span == 0)
    )
    nodes = c.ep / c.near
    limit = where(c.node_limit > 0, np.minimum(c.node_limit, nodes), nodes)
    return [
        Rule(
            (c.dispatcher < 0) | (c.dispatcher > DEDUPLICATED) | (c.dispatcher % 1 > 0),
            f"the dispatcher is one of {', '.join(DISPATCHERS)}, but it is {{}}: "
            "change --dispatcher",
            (c.dispatcher,),
        ),
        Rule(
            (c.dispatcher > 0) & (c.sizes.experts == 0),
            "a dense model sends no tokens to experts, but a dispatcher is chosen: "
            "leave out --dispatcher",
            (),
        ),
        Rule(
            (per < 0) | (per % 1 > 0),
            "a node has a whole number of GPUs, or 0 where all are on one, but "
            "gpus-per-node is {}: change --gpus-per-node",
            (per,),
        ),
        Rule(
            apart & (per > 0) & ~even,
            "a dispatcher of two levels has as many expert-parallel ranks on each "
            "node, but {} ranks, each {} after the other, lie on nodes of {}: change "
            "--ep or --gpus-per-node, or use --dispatcher plain",
            (c.ep, stride, per),
        ),
        Rule(
            (c.node_limit > 0) & ~once,
            "the number of nodes of a token decides what is sent where it goes once "
            "to each, but node-limit is {} and the dispatcher another: give "
            "--dispatcher deduplicated, or leave out --node-limit",
            (c.node_limit,),
        ),
        Rule(
            apart & once & (c.k * nodes > limit * c.sizes.experts),
            "the nodes that a token's experts lie on have as many experts as it has, "
            "but k is {} and node-limit {} with {} experts on each node: raise "
            "--node-limit",
            (c.k, c.node_limit, c.sizes.experts / nodes),
        ),
        Rule(
            apart & once & (c.expert_tp > 1),
            "deduplicated tokens go to whole experts, but etp is {}: give --etp 1",
            (c.expert_tp,),
        ),
        Rule(
            apart & once & (c.capacity_factor > 0),
            "buffers padded to a capacity are of experts, not of nodes, but the "
            "dispatcher is deduplicated: use --dispatcher plain or two-level, or "
            "--dispatch dropless",
            (),
        ),
    ]
