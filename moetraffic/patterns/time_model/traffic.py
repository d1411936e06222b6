"""Bytes that a rank sends in an iteration, by kind of traffic.

The list of a run's every collective is made elsewhere, one configuration at a time;
this is the same in closed form, for arrays of configurations.
"""

from __future__ import annotations

import numpy as np

from moetraffic.patterns.values import Values

from .calls import Traffic
from .configuration import Configuration
from .conventions import SC21, Conventions
from .tensor_traffic import tensor_traffic

KINDS = ("tp", "cp", "pp", "ep", "dp", "edp", "embedding", "ends")
"""Of traffic; "edp" are gradients of experts, "ends" vocabulary-parallel ends."""

IN_DP = ("dp", "edp", "embedding")
"""Kinds that synchronize gradients and parameters: T_DP is their time."""


def traffic(config: Configuration, conventions: Conventions = SC21) -> list[Traffic]:
    """What a rank sends in an iteration.

    Formulas and their sources: ``docs/time-model.md``.

    Parameters
    ----------
    config
        Any.
    conventions
        How sequence-parallel gathers, reduced parameters and ends are counted.
    """
    c, m = config, config.model
    batches, layers = c.micro_batches, c.stage_layers
    full = np.where(c.recompute == 2, 1.0, 0.0)
    row = m.hidden * c.element_bytes
    whole = c.tokens * row  # bytes of a micro-batch's activations between layers
    split = np.where((c.sequence_parallel > 0) | (c.scatter_gather > 0), c.tp, 1)
    share = m.moe_layers / m.layers
    folded = c.split < c.tp  # then experts take the tokens of one rank
    routed = c.copies * row
    again = np.maximum(c.tp / m.key_heads, 1)  # ranks that hold the same key heads
    found = [
        *tensor_traffic(c, conventions, whole, routed),
        Traffic(
            kind="cp",  # keys and values go round: arXiv 2310.01889, section 3
            collective="send_recv",
            ranks=c.cp,
            stride=c.tp,
            buffer=2 * c.tokens * m.keys * again / c.tp * c.element_bytes,
            calls=batches * layers * (c.cp - 1) * (3 + full),
            every_micro_batch=True,
        ),
        Traffic(
            kind="pp",
            collective="send_recv",
            ranks=c.pp,
            stride=c.tp * c.cp * c.dp,
            buffer=whole / split,
            calls=np.where(c.pp > 1, 2 * batches * c.virtual, 0),
            # the first stage hands nothing on behind its first layers' backward
            sent=np.where(c.pp > 1, batches * (2 * c.virtual - 1), 0),
            every_micro_batch=True,
        ),
        Traffic(
            kind="ep",
            collective="all_to_all",
            ranks=c.ep,
            stride=np.where(folded, c.split, c.tp * c.cp),
            buffer=routed,
            copies=np.where(c.deduplicated > 0, m.k, 0),
            most_nodes=np.where(c.node_limit > 0, c.node_limit, np.inf),
            calls=batches * share * layers * (4 + 2 * full) * (c.ep > 1),
            every_micro_batch=True,
        ),
    ]
    held = c.held
    if conventions.reduced != "held":
        held = m.parameters
        if conventions.reduced == "mean":
            held = held / (c.pp * c.tp)
    replicas = c.dp * c.cp
    lists = conventions.zero3 == "lists"
    found += _gradients(c, "dp", held, replicas, c.tp, lists)
    among = np.where(folded, c.split, c.tp * c.cp) * c.ep
    # fully sharded experts are cut by whole experts, padded to the ranks
    local = np.maximum(m.experts / c.ep, 1)
    cut = np.ceil(local / c.expert_copies) * c.expert_copies / local
    experts = c.experts_held * np.where(c.zero == 3, cut, 1.0)
    found += _gradients(c, "edp", experts, c.expert_copies, among, lists)
    found.append(
        Traffic(
            kind="embedding",  # EmbTableSync: first and last stage
            collective="all_reduce",
            ranks=np.where(c.pp > 1, 2.0, 1.0),
            stride=c.tp * c.cp * c.dp * np.maximum(c.pp - 1, 1),
            buffer=c.table * c.gradient_bytes,
            calls=np.where((c.pp > 1) & (m.tied > 0), 1.0, 0.0),
            every_micro_batch=False,
        )
    )
    return found


def _gradients(
    c: Configuration,
    kind: str,
    held: Values,
    ranks: Values,
    stride: Values,
    lists: bool,
) -> list[Traffic]:
    """Gradients, and with ZeRO parameters: arXiv 1910.02054, section 7.

    Under accumulation stage 2 reduces each micro-batch's gradients, and stage 3 gathers
    each one's parameters twice, with a call for each layer or part of it; where modules
    that are computed again release them in between, three times (arXiv 2104.07857,
    section 4.1).
    """
    batches = c.micro_batches
    layers = np.where(c.zero == 3, c.stage_layers * c.gathers, 1.0)
    thrice = lists & (c.recompute == 2)
    one = {
        "kind": kind,
        "ranks": ranks,
        "stride": stride,
        "entries": np.where(lists & (c.zero == 3), ranks, 0),
    }
    # shares of the distributed optimizer are equally long
    padded = np.ceil(np.round(held, 3) / ranks) * ranks
    padded = np.where((c.zero == 1) | (c.zero == 2), padded, held)
    gradient, parameter = padded * c.gradient_bytes, padded * c.element_bytes
    there = np.where(held > 0, 1.0, 0.0)
    return [
        Traffic(
            collective="all_reduce",
            buffer=gradient,
            calls=there * (c.zero == 0),
            every_micro_batch=False,
            **one,
        ),
        Traffic(
            collective="reduce_scatter",
            buffer=gradient / layers,
            calls=there
            * layers
            * np.select([c.zero == 1, c.zero >= 2], [1.0, batches], 0.0),
            every_micro_batch=False,
            **one,
        ),
        Traffic(
            collective="all_gather",
            # a layer's before each of its passes
            buffer=parameter / layers,
            calls=there
            * layers
            * np.select(
                [c.zero == 3, (c.zero == 1) | (c.zero == 2)],
                [np.where(thrice, 3, 2) * batches, 1.0],
                0.0,
            ),
            every_micro_batch=False,
            **one,
        ),
    ]
