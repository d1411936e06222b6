"""Bytes that a rank sends in an iteration, by kind of traffic.

The list of a run's every collective is made elsewhere, one configuration at a time;
this is the same in closed form, for arrays of configurations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .configuration import Configuration
from .conventions import SC21, Conventions
from .values import Float64, Values, shared


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Calls of one collective that a rank takes part in, in one iteration."""

    kind: str  # tp, cp, pp, ep, dp, edp, embedding, ends
    collective: str  # all_reduce, all_gather, reduce_scatter, all_to_all, send_recv
    ranks: Float64  # n of the group
    stride: Float64  # between neighbors of the group, in Megatron's order of ranks
    buffer: Float64  # bytes of a call, as nccl-tests count them: the whole buffer
    calls: Float64  # of an iteration
    every_micro_batch: bool  # or once an iteration
    copies: Values = 0  # k, where a node gets one copy of a token and hands it on
    most_nodes: Values = np.inf  # that the k experts of a token lie on

    @property
    def wire(self) -> Float64:
        """Bytes that a rank sends: ``2 (n-1)/n`` of an all-reduce's buffer, ``(n-1)/n``
        of the others', all of what is sent to one peer."""
        if self.collective == "send_recv":
            return self.calls * self.buffer
        turns = 2 if self.collective == "all_reduce" else 1
        return turns * shared(self.calls * self.buffer, self.ranks)

    @property
    def steps(self) -> Float64:
        """Messages one after the other of a rank: latency's part of Hockney's T."""
        if self.collective == "send_recv":
            return self.calls
        turns = 2 if self.collective == "all_reduce" else 1
        return turns * self.calls * (self.ranks - 1)


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
    spread = np.where(c.capacity_factor > 0, c.capacity_factor, c.imbalance)
    # experts are split over tp too: what is reduced behind them has a row a copy
    share = m.moe_layers / m.layers
    folded = c.split < c.tp  # then experts take the tokens of one rank
    behind = np.where(folded, 0.0, m.k * spread)
    rows = 0.5 + 0.5 * ((1 - share) + share * behind)
    apart = np.where((c.sequence_parallel > 0) | folded, c.tp, 1)
    routed = m.k * whole * spread / apart
    found = [
        *_tensor(c, conventions, whole, rows, batches * layers),
        Traffic(
            kind="cp",  # keys and values go round: arXiv 2310.01889, section 3
            collective="send_recv",
            ranks=c.cp,
            stride=c.tp,
            buffer=2 * c.tokens * m.keys / c.tp * c.element_bytes,
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
    held = m.parameters if conventions.reduced == "whole" else c.held
    replicas = c.dp * c.cp
    found += _gradients(c, "dp", held, replicas, c.tp)
    among = np.where(folded, c.split, c.tp * c.cp) * c.ep
    found += _gradients(c, "edp", c.experts_held, c.expert_copies, among)
    found.append(
        Traffic(
            kind="embedding",  # EmbTableSync: first and last stage
            collective="all_reduce",
            ranks=np.where(c.pp > 1, 2.0, 1.0),
            stride=c.tp * c.cp * c.dp * np.maximum(c.pp - 1, 1),
            buffer=m.vocabulary * m.hidden / c.tp * c.gradient_bytes,
            calls=np.where((c.pp > 1) & (m.tied > 0), 1.0, 0.0),
            every_micro_batch=False,
        )
    )
    return found


def _tensor(
    c: Configuration,
    conventions: Conventions,
    whole: Values,
    rows: Values,
    calls: Values,
) -> list[Traffic]:
    """Of layers, 2 all-reduces forward and 2 backward, and those of the ends."""
    full = np.where(c.recompute == 2, 1.0, 0.0)
    apart = np.where(c.sequence_parallel > 0, 1.0, 0.0)
    again = 6 if conventions.gathers == "megatron" else 4
    one = {"ranks": c.tp, "stride": np.ones(()), "every_micro_batch": True}
    numbers = {
        "all_reduce": (1 - apart) * (4 + 2 * full),
        "all_gather": apart * (again + 2 * full),
        "reduce_scatter": apart * (4 + 2 * full),
    }
    found = [
        Traffic(
            kind="tp", collective=name, buffer=whole * rows, calls=calls * number, **one
        )
        for name, number in numbers.items()
    ]
    if conventions.ends == "counted":
        # seen from the first stage; a stage alone is the last one too
        both = np.where(c.pp > 1, 1.0, 2.0)
        loss = np.where(c.pp > 1, 0.0, 3.0)
        found += [
            Traffic(
                kind="ends",
                collective="all_reduce",
                buffer=buffer,
                calls=c.micro_batches * number,
                **one,
            )
            for buffer, number in ((whole, both), (4 * c.tokens, loss))
        ]
    return found


def _gradients(
    c: Configuration, kind: str, held: Values, ranks: Values, stride: Values
) -> list[Traffic]:
    """Gradients, and with ZeRO parameters: arXiv 1910.02054, section 7.

    Under accumulation stage 2 reduces each micro-batch's gradients, and stage 3 gathers
    each one's parameters twice, with a call for each layer or part of it.
    """
    batches = c.micro_batches
    layers = np.where(c.zero == 3, c.stage_layers * c.gathers, 1.0)
    one = {"kind": kind, "ranks": ranks, "stride": stride}
    gradient, parameter = held * c.gradient_bytes, held * c.element_bytes
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
            # a layer's before its forward and its backward
            buffer=parameter / layers,
            calls=there
            * layers
            * np.select(
                [c.zero == 3, (c.zero == 1) | (c.zero == 2)], [2 * batches, 1.0], 0.0
            ),
            every_micro_batch=False,
            **one,
        ),
    ]
