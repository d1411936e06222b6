"""Record a collective call, whichever way it is observed.

The code runs in the training thread, so it records only what is not available later,
and holds no tensor: everything else is computed elsewhere
(:mod:`moetraffic.capture.records.journal`,
:mod:`moetraffic.capture.records.committer`).
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from moetraffic.capture.annotate import here
from moetraffic.capture.record_format import CALL, OPERATIONS

from .calling_block import BlockSearch

if TYPE_CHECKING:
    import torch.distributed as dist

KEY = "BackendSelect"
OPERATOR = "alltoall_base_"  # of all-to-alls with splits
EXCHANGE = OPERATIONS.index("all_to_all")
now_ns = time.perf_counter_ns

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_sequence = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_NO_SEQUENCE = 2**63
_grad = torch.is_grad_enabled
_thread = threading.get_ident

Record = tuple[Any, ...]
"""``(CALL, number, issue, operation, group, place, dtype, thread, in_backward, grad,
link, node, (source, destination, bytes, shape, shape_received, sent, received))``: the
name of the group, the shapes of input and output, and the split sizes passed to the
call."""


class SynchronousCall(threading.local):
    """Thread-local number and work of the last call, if the caller is to wait for it.

    Another call ends it: the work of a call that is never waited for is not kept alive.
    """

    call: tuple[int, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class CallSink:
    """Receivers of recorded collectives, which must not raise."""

    put: Callable[[Record], None]  # stores a record
    meet: Callable[[dist.ProcessGroup], None]  # registers a group, before its calls
    number: Callable[[str, Any], int]  # of a group, context, dtype, thread or node
    before: Callable[[torch.Tensor | None], Any]  # records a device event before a call
    launched: Callable[[int, Any, torch.Tensor | None, int, Any], None]
    """Tracks a call until it completes, see :mod:`.completion`."""
    waiting: SynchronousCall
    failed: Callable[[str, Exception], None]  # reports a call that is not recorded
    blocks: BlockSearch  # finds the module that makes the first all-to-alls


_numbers = itertools.count()

GroupNames = dict[int, tuple[str, Any]]
"""Name of each group, and a reference to it, by the ID of a living group."""


def recording(
    sink: CallSink, names: GroupNames
) -> Callable[[dist.ProcessGroup, int, torch.dtype | None, tuple[Any, ...]], int]:
    """Create the function that records a call and returns its number."""
    put, blocks = sink.put, sink.blocks

    def record(
        group: dist.ProcessGroup,
        operation: int,
        dtype: torch.dtype | None,
        described: tuple[Any, ...],
    ) -> int:
        named = names.get(id(group)) or _named(group, names, sink.meet)
        again, link, ran = 0, _sequence() - 1, None
        if _task() != -1:
            again, (link, ran) = 1, _running()
        number, place = next(_numbers), here.place
        if blocks.searches:
            place = blocks.context(place, exchange=operation == EXCHANGE)
        # fmt: off
        put((
            CALL, number, now_ns(), operation, named[0], place,
            dtype, _thread(), again, _grad(), link, ran, described,
        ))
        # fmt: on
        return number

    return record


def _named(
    group: dist.ProcessGroup,
    names: GroupNames,
    meet: Callable[[dist.ProcessGroup], None],
) -> tuple[str, Any]:
    """Register a group at its first call, and keep its name while it exists."""
    meet(group)
    key = id(group)
    named = group.group_name, weakref.ref(group, lambda _: names.pop(key, None))
    names[key] = named
    return named


def _running() -> tuple[int, str | None]:
    """Return sequence number and name of the running autograd node."""
    node: Any = _node()  # None between two nodes
    if node is None:
        return -1, None
    # from the type: a Function of the program may set ctx.name to anything
    kind = type(node)
    number = kind._sequence_nr(node)
    # 2**64 - 1 for the node that accumulates a gradient, in which DDP's calls run
    return (number if number < _NO_SEQUENCE else -1), kind.name(node)
