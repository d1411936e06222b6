"""Bytes of tensor and sequence parallelism: layers, split experts, and ends."""

from __future__ import annotations

import numpy as np

from moetraffic.patterns.values import Values, anywhere

from .calls import Traffic
from .configuration import Configuration
from .conventions import Conventions


def tensor_traffic(
    c: Configuration, conventions: Conventions, whole: Values, routed: Values
) -> list[Traffic]:
    """What a rank of the first stage sends to its tensor-parallel group.

    Two matrices in a row, one split by output and one by input, need an all-reduce in
    each pass (arXiv 1909.08053, section 3); with sequence parallelism a gather and a
    reduce-scatter instead, and the input once more for the weights' gradients (arXiv
    2205.05198, section 4.2.2).  Attention is such a pair, so is a feed-forward network,
    and a decoder has a second attention, to the encoder's tokens.  Split experts gather
    and reduce the copies that were routed (Megatron-LM, ``token_dispatcher.py``).

    Parameters
    ----------
    c
        Any.
    conventions
        ``gathers`` and ``ends``.
    whole, routed
        Bytes of a micro-batch's activations between layers, and of the copies that a
        rank routes.
    """
    m = c.model
    full = np.where(c.recompute == 2, 1.0, 0.0)
    apart = np.where(c.sequence_parallel > 0, 1.0, 0.0)
    again = 1 if conventions.gathers == "megatron" else 0
    calls = c.micro_batches * c.stage_layers
    share = m.moe_layers / m.layers
    # attention, and a dense or shared network
    pairs = 1 + (1 - share) + share * np.where(m.shared_ffn > 0, 1.0, 0.0)
    cross = m.cross_layers / m.layers
    row = m.hidden * c.element_bytes * c.micro_batch / c.cp
    source, targets = m.source * row, m.targets * row
    found = [
        _calls(c, "tp", "all_reduce", whole, calls * pairs * (1 - apart) * (2 + full)),
        _calls(
            c, "tp", "all_gather", whole, calls * pairs * apart * (2 + again + full)
        ),
        _calls(c, "tp", "reduce_scatter", whole, calls * pairs * apart * (2 + full)),
    ]
    if anywhere(cross > 0):
        for size, summed, gathered in (
            (targets, 2 + full, 2 + again + full),
            (source, 1.0, 2 + full),
        ):
            found += [
                _calls(
                    c, "tp", "all_reduce", size, calls * cross * (1 - apart) * summed
                ),
                _calls(c, "tp", "all_gather", size, calls * cross * apart * gathered),
                _calls(c, "tp", "reduce_scatter", size, calls * cross * apart * summed),
            ]
    if anywhere(share > 0):
        times = np.where(c.split > 1, calls * share * (2 + full), 0.0)
        found += [
            _calls(c, "tp", name, routed * c.split, times, ranks=c.split)
            for name in ("all_gather", "reduce_scatter")
        ]
    return found + (_ends(c, source, targets) if conventions.ends == "counted" else [])


def _ends(c: Configuration, source: Values, targets: Values) -> list[Traffic]:
    """Embedding, head and loss split by vocabulary, and gradients of norms."""
    m, batches = c.model, c.micro_batches
    apart = np.where(c.sequence_parallel > 0, 1.0, 0.0)
    last = np.where(c.pp > 1, 0.0, 1.0)  # a stage alone is the last one too
    own = c.stage_layers * m.layer_own + m.first_own + last * m.last_own
    loss = 4 * m.targets * c.micro_batch / c.cp
    return [
        _calls(c, "ends", "all_reduce", source, batches * (1 - apart)),
        _calls(c, "ends", "all_reduce", targets, batches * (1 - apart) * last),
        _calls(c, "ends", "reduce_scatter", source, batches * apart),
        _calls(c, "ends", "all_gather", source, batches * apart),
        _calls(c, "ends", "all_gather", targets, batches * apart * last * 2),
        _calls(c, "ends", "reduce_scatter", targets, batches * apart * last),
        _calls(c, "ends", "all_reduce", loss, batches * last * 3),
        _calls(c, "ends", "all_reduce", own * c.gradient_bytes, apart, once=True),
    ]


def _calls(
    c: Configuration,
    kind: str,
    collective: str,
    buffer: Values,
    calls: Values,
    *,
    ranks: Values | None = None,
    once: bool = False,
) -> Traffic:
    return Traffic(
        kind=kind,
        collective=collective,
        ranks=c.tp if ranks is None else ranks,
        stride=np.ones(()),
        buffer=buffer,
        calls=calls,
        every_micro_batch=not once,
    )
