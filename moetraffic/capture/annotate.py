"""Annotations of a model: the context of collectives, and routing decisions.

A model calls these two functions whether or not anybody records: without a recorder
they cost a global look-up.  They change nothing in the training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moetraffic.errors import CaptureError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class CallContext:
    """Layer, phase and label of a call in the model."""

    layer: int = -1
    phase: str = ""
    label: str = ""


NO_CONTEXT = CallContext()
MOST_PLACES = 10_000  # a program that labels each step with its number has no end
_places: dict[tuple[int, str, str], CallContext] = {}
PHASES = frozenset({"", "dispatch", "combine", "combine_grad", "dispatch_grad"})
LONGEST_LABEL = 200  # characters
LARGEST_LAYER = 2**31 - 1


class _Here(threading.local):
    place = NO_CONTEXT  # what a thread that is nowhere finds


here = _Here()
"""Where this thread is: the hook reads it in every call."""
_mirror: Callable[[CallContext], None] | None = None

RoutingSink = Callable[
    [int, "torch.Tensor", "torch.Tensor | None", "dist.ProcessGroup | None"], None
]
_routing_sinks: list[RoutingSink] = []


def place() -> CallContext:
    """Return the current thread's context."""
    return here.place


def is_layer(layer: object) -> bool:
    """Whether a value is the index of a layer."""
    # bool is an int, and so is an IntEnum
    return isinstance(layer, int) and 0 <= layer <= LARGEST_LAYER


def is_label(label: object) -> bool:
    """Whether a value is text that a trace can hold as a name."""
    if not isinstance(label, str) or len(label) > LONGEST_LABEL:
        return False
    return label.isascii() or label.isprintable()  # half a surrogate pair is neither


def set_context(there: CallContext) -> CallContext:
    """Set the current thread's context; return the previous one.

    For hooks, which cannot hold a ``with`` open: whoever moves puts back what it got.
    """
    before = here.place
    here.place = there
    if _mirror is not None:
        _mirror(there)
    return before


def mirror(tell: Callable[[CallContext], None] | None) -> None:
    """Set the callback for context changes (compiled hook); None removes it."""
    global _mirror
    _mirror = tell


@contextmanager
def at(*, layer: int = -1, phase: str = "", label: str = "") -> Iterator[None]:
    """Annotate the collectives called within the context with a layer and phase.

    Parameters
    ----------
    layer
        Global layer index, -1 for none.
    phase
        ``"dispatch"``, ``"combine"``, ``"combine_grad"``, ``"dispatch_grad"`` or "".
    label
        A name of the program's own, such as ``"gradient_sync"``.

    Raises
    ------
    CaptureError
        If there is no such phase, the layer is no index, or the label no short text.
    """
    if phase not in PHASES:
        raise CaptureError(
            f"a phase is one of {', '.join(sorted(PHASES - {''}))}, or empty, not "
            f"{phase!r}: choose one"
        )
    if not is_layer(layer) and layer != -1:
        raise CaptureError(
            f"a layer is an index from 0 on, or -1 for none, not {layer!r}: change it"
        )
    if label and not is_label(label):
        raise CaptureError(
            f"a label is text of at most {LONGEST_LABEL} characters, not "
            f"{str(label)[:40]!r}: shorten it"
        )
    key = (layer, phase, label)
    now = _places.get(key)
    if now is None:
        now = CallContext(layer, phase, label)
        if len(_places) < MOST_PLACES:
            _places[key] = now
    before = set_context(now)
    try:
        yield
    finally:
        set_context(before)


def routing(
    layer: int,
    demand: torch.Tensor,
    dropped: torch.Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Record this rank's routing of one micro-batch.

    Parameters
    ----------
    layer
        Global layer index.
    demand
        ``[E]`` integer token copies that this rank routed to each expert, experts in
        global order, copies over capacity included.
    dropped
        ``[E]`` integer token copies of these that were dropped for want of capacity;
        None where nothing can be dropped.
    group
        The expert-parallel process group; None is the world.
    """
    for sink in _routing_sinks:
        sink(layer, demand, dropped, group)


def subscribe(sink: RoutingSink) -> Callable[[], Any]:
    """Subscribe to routings; return the function that ends the subscription."""
    _routing_sinks.append(sink)
    return lambda: _routing_sinks.remove(sink)


@dataclass(frozen=True, slots=True)
class ShardRouting:
    """Routing of the shards of several virtual ranks in one process."""

    layer: int  # global layer
    slot: int  # micro-batch of the step
    first: int  # rank of the first row
    demand: torch.Tensor  # [n, E] integer token copies, a row a rank
    dropped: torch.Tensor | None  # [n, E] of these dropped; None: nothing can be
    row_bytes: int  # bytes of a token copy, were it sent
    dtype: str  # its element type
    padded: int  # rows sent to each expert whatever is routed; 0: what is kept


ShardSink = Callable[[ShardRouting], None]
_shard_sinks: list[ShardSink] = []


def shard_routing(decided: ShardRouting) -> None:
    """Record the routing of virtual ranks in this process."""
    for sink in _shard_sinks:
        sink(decided)


def subscribe_shards(sink: ShardSink) -> Callable[[], Any]:
    """Subscribe to shard routings; return the function that ends the subscription."""
    _shard_sinks.append(sink)
    return lambda: _shard_sinks.remove(sink)
