"""Overlap as a schedule: which calls hide behind which compute, and how much of them.

A kind that a program overlaps hides behind the compute that its schedule has for it, a
*window*: no longer than the window takes, and only those calls that have one.  With L
equal layers of a stage, whose compute takes b each and whose calls g, the end of the
last call is ``max(L b + g, b + L g)``, so that ``(L-1)/L min(L g, L b)`` are hidden.

References
----------
Gradients: Li et al., arXiv 2006.15704, section 3.2.3; gathers of ZeRO 3: Zhao et al.,
arXiv 2304.11277, section 3.3.2; rings of attention: Liu et al., arXiv 2310.01889,
section 3; parts of tensor-parallel products: arXiv 2205.05198, section 4.2.2, and
Wang et al., ASPLOS 2023; expert exchanges under DualPipe: arXiv 2412.19437, section
3.2.1, figure 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.layouts.schedules import SCHEDULES
from moetraffic.patterns.values import Values, where

from .calls import Traffic

WINDOWS: Mapping[str, str] = {
    "gradients": "the last backward pass through the layers before",
    "parameters": "the next forward pass through the layers before",
    "micro_batch": "each backward pass through the layers before",
    "before_forward": "the forward pass of the layer before",
    "before_backward": "the backward pass of the layer behind",
    "after_backward": "the backward pass of the layer before",
    "products": "the layer's own matrix products",
    "attention": "attention to the keys and values that are there",
    "micro_batches": "the compute of another micro-batch",
    "directions": "the compute of the opposite direction's micro-batch",
}
"""Compute behind which calls hide, by the name of a window."""

OF_KIND: Mapping[str, str] = {"tp": "products", "pp": "micro_batches"}
"""Windows of kinds that have one."""

OVERLAPPING = ("tp", "cp", "pp", "ep", "dp", "edp")
"""Kinds of traffic with a window; a tied embedding's gradient is there last, and the
ends of a model wait for each other."""

SHARED = {"before_backward": "after_backward", "micro_batch": "after_backward"}
"""Windows that are the same compute."""


def window(call: Traffic, config: Configuration) -> str:
    """The window of a call, one of :data:`WINDOWS`; "" where it has none."""
    if call.kind == "cp":  # of what is gathered or exchanged attention needs all
        return "attention" if call.collective == "send_recv" else ""
    if call.kind == "ep":
        paired = np.any(config.schedule == SCHEDULES.index("dualpipe"))
        return "directions" if paired else "micro_batches"
    return OF_KIND.get(call.kind, call.point)


def paired_share(stages: Values, micro_batches: Values) -> Values:
    """Share of a rank's forward passes that DualPipe runs with a backward pass of the
    other direction, on the first stage: ``m - 3 p/2 + 1`` of m.

    Examples
    --------
    >>> float(paired_share(4, 20))
    0.75
    """
    return np.maximum(micro_batches - 1.5 * stages + 1, 0.0) / micro_batches


def hidden(
    config: Configuration,
    moved: Sequence[Traffic],
    spent: Sequence[Values],
    shares: Mapping[str, Values],
    passes: tuple[Values, Values, Values],
) -> dict[tuple[str, str], Float64]:
    """Seconds of communication that hide, by kind and window.

    Parameters
    ----------
    config
        Any.
    moved, spent
        Calls of an iteration, and the seconds that each takes.
    shares
        By kind, the share of its calls that the program overlaps.
    passes
        Seconds of one micro-batch on a rank: forward, backward with what is computed
        again, and of these the attention core.
    """
    c, (forward, backward, core) = config, passes
    m, both = c.accumulation, forward + backward
    rest = 1 - 1 / c.stage_layers
    paired = where(c.schedule == SCHEDULES.index("dualpipe"), 1.0, 0.0)
    other = where(paired > 0, paired_share(c.pp, m), 1 - 1 / m)
    ring = c.cp / c.inner
    room: dict[str, Values] = {
        "gradients": rest * backward,
        "parameters": rest * forward,
        "before_forward": rest * m * forward,
        "after_backward": rest * m * backward,
        "products": m * (both - core),
        "attention": m * core * (1 - 1 / ring),
        "micro_batches": m * both,
        "directions": other * m * both,
    }
    # what of the calls comes while there is compute left
    of, dense = c.sizes, c.stages.dense[0] > 0
    split = where(dense, of.dense_split, of.sparse_split)
    a_layer = split / c.tp + where(dense, of.dense_whole, of.sparse_whole)
    early = 1 - (a_layer + c.table + c.sizes.first_whole) / np.maximum(c.held, 1.0)
    ahead = where(c.prefetch > 0, rest, 0.0)
    wanted: dict[tuple[str, str], Values] = {}
    for call, time in zip(moved, spent, strict=True):
        name = window(call, c)
        if call.kind not in shares or not name:
            continue
        part: Values = 1.0
        if name in ("gradients", "parameters"):
            part = np.maximum(early, 0.0) if call.kind == "dp" else rest
        elif name in ("before_forward", "before_backward"):
            part = ahead
        elif call.point:
            part = rest
        elif call.kind == "ep":
            part = other
        key = call.kind, name
        wanted[key] = wanted.get(key, 0.0) + shares[call.kind] * part * time
    asked: dict[str, Values] = {}
    for (_, name), time in wanted.items():
        name = SHARED.get(name, name)
        asked[name] = asked.get(name, 0.0) + time
    share = {
        name: np.minimum(1.0, room[name] / np.maximum(time, 1e-30))
        for name, time in asked.items()
    }
    found = {key: t * share[SHARED.get(key[1], key[1])] for key, t in wanted.items()}
    # no second of compute hides more than one second, whatever it is of
    whole = np.maximum(sum(found.values(), np.zeros(c.shape)), 1e-30)
    most = np.minimum(1.0, m * both / whole)
    return {key: np.asarray(time * most) for key, time in found.items()}
