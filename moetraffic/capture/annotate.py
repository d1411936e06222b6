"""Annotate the collectives and report the expert routings of a model.

A model calls these functions whether or not a recorder is active: without a recorder
they cost a global look-up.  They have no effect on the training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moetraffic.errors import CaptureError
from moetraffic.spelling import check_choice

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class CallContext:
    """Layer, phase and label that annotate a collective of the model."""

    layer: int = -1
    phase: str = ""
    label: str = ""
    linked: bool = False  # set by a hook on a router, not by the program
    module_call: int = 0  # of the calling module, see hook.calling_block; 0: unknown
    evaluates: int = 0  # 1: autograd does not record, 2: the module evaluates


NO_CONTEXT = CallContext()
PHASES = ("", "dispatch", "combine", "combine_grad", "dispatch_grad")
LONGEST_LABEL = 200  # characters
LARGEST_LAYER = 2**31 - 1


class _Here(threading.local):
    place = NO_CONTEXT  # default of a thread without an annotation


here = _Here()
"""Thread-local context, which the hook reads in every call."""
_mirror: Callable[[CallContext], None] | None = None


def require(valid: bool, rule: str, value: object) -> None:
    """Raise a CaptureError if a value is not as the rule says."""
    if not valid:
        raise CaptureError(f"{rule}, but {shown(value)} was given: change it")


def shown(value: object) -> str:
    """Return the beginning of a value's text, also if it has none."""
    try:
        return repr(value)[:60]
    except Exception:
        return f"a {type(value).__name__}"


def place() -> CallContext:
    """Return the current thread's annotation of collectives."""
    return here.place


def set_context(context: CallContext) -> CallContext:
    """Set the current thread's annotation; return the previous one."""
    before, here.place = here.place, context
    if _mirror is not None:
        _mirror(context)
    return before


def mirror(receive: Callable[[CallContext], None] | None) -> None:
    """Set the callback of the compiled hook for context changes; None removes it."""
    global _mirror
    _mirror = receive


def is_layer(layer: object) -> bool:
    """Whether a value is a valid layer index."""
    return isinstance(layer, int) and 0 <= layer <= LARGEST_LAYER


@contextmanager
def at(*, layer: int = -1, phase: str = "", label: str = "") -> Iterator[None]:
    """Annotate the collectives within a ``with`` block with layer, phase and label.

    Parameters
    ----------
    layer
        Global layer index, -1 for none.
    phase
        ``"dispatch"``, ``"combine"``, ``"combine_grad"``, ``"dispatch_grad"`` or "".
    label
        A name chosen by the program, such as ``"gradient_sync"``.

    An unknown phase, and an invalid layer or label, raise a CaptureError.
    """
    check_choice("a phase", phase, PHASES, CaptureError)
    valid = is_layer(layer) or layer == -1
    require(valid, "a layer is an index from 0 on, or -1 for none", layer)
    # a lone surrogate is not printable
    valid = isinstance(label, str) and label.isprintable()
    valid = valid and len(label) <= LONGEST_LABEL
    require(valid, f"a label is at most {LONGEST_LABEL} printable characters", label)
    before = set_context(CallContext(layer, phase, label))
    try:
        yield
    finally:
        set_context(before)


def routing(
    layer: int,
    demand: torch.Tensor,
    dropped: torch.Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    *,
    chosen: torch.Tensor | None = None,
) -> None:
    """Report the token copies per expert that this rank routed in one layer.

    Parameters
    ----------
    layer
        Global layer index.
    demand
        ``[E]`` integer token copies that this rank routed to each expert, experts in
        global order, copies over capacity included.
    dropped
        ``[E]`` integer token copies of these that were dropped because of the capacity,
        zeros where nothing can be dropped.  If it is left out, the trace has zeros
        where the bytes sent equal the demand; otherwise drops are unknown.
    group
        The expert-parallel process group; None: that of the layer's dispatch, or the
        default group if none is recorded.
    chosen
        Experts of each token, of which a recorder with ``token_sample`` records some:
        ``[T, k]`` integer ids, -1 for none, or ``[T, E]`` bool.
    """
    for sink, choices in _routing_sinks:
        sink(layer, demand, dropped, group, **({"chosen": chosen} if choices else {}))


RoutingSink = Callable[..., None]
"""``(layer, demand, dropped, group)``, and ``chosen=`` if it asks for it."""
_routing_sinks: list[tuple[RoutingSink, bool]] = []


def subscribe(sink: RoutingSink, *, choices: bool = False) -> Callable[[], None]:
    """Register a receiver of routings; return the function that removes it.

    With ``choices``, it also receives the keyword argument ``chosen``.
    """
    _routing_sinks.append((sink, choices))
    return lambda: _routing_sinks.remove((sink, choices))


SAVE_EVERY = 100
"""Default number of iterations between two saves of a trace of virtual ranks."""


@dataclass(frozen=True, slots=True)
class ShardRouting:
    """Token copies per expert of several virtual ranks in one layer."""

    layer: int  # global layer
    slot: int  # micro-batch of the step
    first: int  # rank of the first row
    demand: torch.Tensor  # [n, E] integer token copies, one row per rank
    dropped: torch.Tensor  # [n, E] of these dropped
    row_bytes: int  # bytes of a token copy if it were sent
    dtype: str  # its element type
    padded: int  # fixed number of rows sent to each expert; 0: the kept copies
    chosen: Sequence[torch.Tensor] = ()  # of each rank, as in :func:`routing`


_shard_sinks: list[Callable[[ShardRouting], None]] = []


def shard_routing(decided: ShardRouting) -> None:
    """Report the routing of virtual ranks to all registered receivers."""
    for sink in _shard_sinks:
        sink(decided)


def subscribe_shards(sink: Callable[[ShardRouting], None]) -> Callable[[], None]:
    """Register a receiver of shard routings; return the function that removes it."""
    _shard_sinks.append(sink)
    return lambda: _shard_sinks.remove(sink)
