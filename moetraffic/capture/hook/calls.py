"""Record all collectives of a process in torch's dispatcher.

A kernel for each c10d operator at the dispatcher's BackendSelect key records the call
and forwards it.  This is below autograd, torch.compile, DDP's reducer and functional
collectives, and above the backends; other operators have no overhead.  A collective
inside a replayed CUDA graph does not pass through the dispatcher and is not recorded.
The kernels are in Python here; where :mod:`.native` is built, its compiled kernels put
the same records.
"""

from __future__ import annotations

import itertools
import math
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from moetraffic.capture import annotate
from moetraffic.capture.annotate import here
from moetraffic.errors import CaptureError
from moetraffic.trace.merge.log_format import CALL, CALL_HEAD, OPERATIONS

from .calling_block import BlockSearch

if TYPE_CHECKING:
    import torch.distributed as dist

    from .completion import CompletionTracker

KEY = "BackendSelect"
NO_SEQUENCE = 2**63
ALL_TO_ALL = OPERATIONS.index("all_to_all")
SINGLE = "alltoall_base_"  # operator of all-to-alls with splits
now_ns = time.perf_counter_ns

# operator: (name in the trace, argument index of process group, of this rank's input)
COLLECTIVES: dict[str, tuple[str, int, int]] = {
    "allreduce_": ("all_reduce", 1, 0),
    "allreduce_coalesced_": ("all_reduce", 1, 0),
    "allgather_": ("all_gather", 2, 1),
    "_allgather_base_": ("all_gather", 2, 1),
    "allgather_coalesced_": ("all_gather", 2, 1),
    "allgather_into_tensor_coalesced_": ("all_gather", 2, 1),
    "reduce_scatter_": ("reduce_scatter", 2, 1),
    "_reduce_scatter_base_": ("reduce_scatter", 2, 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 2, 1),
    "reduce_": ("reduce", 1, 0),
    "broadcast_": ("broadcast", 1, 0),
    "gather_": ("gather", 2, 1),
    "scatter_": ("scatter", 2, 1),
    "barrier": ("barrier", 1, -1),
    "send": ("send_recv", 1, 0),
    "recv_": ("send_recv", 1, 0),
    "recv_any_source_": ("send_recv", 1, 0),
    SINGLE: ("all_to_all", 2, 1),
    "alltoall_": ("all_to_all", 2, 1),
}

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_sequence = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_grad = torch.is_grad_enabled
_thread = threading.get_ident
_unbox = torch.distributed.ProcessGroup.unbox
_unbox_work = torch.distributed.Work.unbox
_keys: Callable[[Any], object] = torch._C.DispatchKeySet.raw_repr
_numbers = itertools.count()


class _Memo(dict[Any, Any]):
    """Results of a function of one argument, by the argument."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self._function(key)
        return value


# three times as fast as an array
_pack = _Memo(lambda length: struct.Struct(f"{length}q").pack)


@dataclass(frozen=True, kw_only=True)
class CallSink:
    """Receivers of recorded collectives, which must not raise."""

    put: Callable[[bytes], object]  # stores a CALL record, or counts it as lost
    meet: Callable[[dist.ProcessGroup], int]  # numbers a group at its first call
    number: Callable[[str, Any], int]  # of a context, dtype, thread or node
    failed: Callable[[str, Exception], None]  # reports a call that is not recorded
    completion: CompletionTracker
    blocks: BlockSearch  # finds the module that makes the first all-to-alls


def install(sink: CallSink, native: ModuleType | None = None) -> Callable[[], None]:
    """Install the dispatcher hook, which reports all c10d collectives to ``sink``.

    The compiled hook ``native`` puts CALL records into its own queue.  The result is a
    function that removes the hook.
    """
    if native is not None:
        return _install_native(sink, native)
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    remove: Callable[[], None] = library._destroy
    kernel_of = _kernels(sink)
    try:
        for name in COLLECTIVES:
            operator = getattr(torch.ops.c10d, name, None)
            if operator is not None:  # older releases lack some of the coalesced ones
                kernel = kernel_of(name, operator.default._handle.redispatch_boxed)
                library.impl(  # type: ignore[no-untyped-call]
                    name, kernel, KEY, with_keyset=True
                )
    except (AttributeError, TypeError) as error:
        remove()
        raise CaptureError(
            f"the hook needs torch's dispatcher as of release 2.5 or newer, but torch "
            f"{torch.__version__} refuses it ({error}): upgrade torch"
        ) from None
    return remove


def _install_native(sink: CallSink, native: ModuleType) -> Callable[[], None]:
    def arrive() -> tuple[int, int]:
        thread = sink.number("thread", _thread())
        return thread, sink.number("context", here.place)

    def search() -> int:
        if not sink.blocks.searches:
            return -1
        context = sink.blocks.context(here.place, exchange=True)
        return sink.number("context", context)

    def remove() -> None:
        annotate.mirror(None)
        native.uninstall()

    native.install(
        [
            (name, OPERATIONS.index(operation), group, given)
            for name, (operation, group, given) in COLLECTIVES.items()
        ],
        arrive,
        search,
        lambda group: sink.meet(_unbox(group)),
        # a dtype is given by a tensor of that dtype
        lambda kind, name: sink.number(kind, getattr(name, "dtype", name)),
        sink.completion.launched,
        lambda name, why: sink.failed(name, RuntimeError(why)),
    )
    annotate.mirror(lambda context: native.stand(sink.number("context", context)))
    return remove


def _kernels(sink: CallSink) -> Callable[[str, Any], Callable[..., Any]]:
    """Return the function that creates the kernel of an operator.

    A kernel records a call and forwards it to ``operator._handle.redispatch_boxed``.
    """
    after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
    python, meta = torch._C.DispatchKey.Python, torch._C.DispatchKey.Meta
    put, blocks, completion = sink.put, sink.blocks, sink.completion
    waiting = completion.waiting
    contexts, dtypes, threads, nodes = (
        _Memo(partial(sink.number, kind))
        for kind in ("context", "dtype", "thread", "node")
    )
    # number and a reference, by the ID of a living group, as IDs are reused
    groups: dict[int, tuple[int, Any]] = {}

    def meet(group: dist.ProcessGroup) -> tuple[int, Any]:
        key = id(group)
        known = sink.meet(group), weakref.ref(group, lambda _: groups.pop(key, None))
        groups[key] = known
        return known

    def create(name: str, redispatch: Callable[..., Any]) -> Callable[..., Any]:
        traced_as, position, _ = COLLECTIVES[name]
        operation, single = OPERATIONS.index(traced_as), name == SINGLE
        describe = _DESCRIBE.get(name) or _describer(name)
        # methods of key sets take microseconds, and few sets occur
        following: dict[object, tuple[Any, bool]] = {}

        def kernel(keyset: Any, *args: Any) -> Any:
            keys = _keys(keyset)
            known = following.get(keys)
            if known is None:
                # a mode or tensor subclass calls the operator again with the plain
                # tensors that it sends; meta and fake tensors are not sent
                sends = not (keyset.has(python) or keyset.has(meta))
                known = following[keys] = keyset & after, sends
            further, sends = known
            if not sends:
                return redispatch(further, *args)
            number, event = -1, None
            try:
                group = _unbox(args[position])
                members, _ = groups.get(id(group)) or meet(group)
                output, dtype, fields, splits = describe(args, group)
                if _task() == -1:
                    in_backward, link, node = 0, _sequence() - 1, -1
                else:
                    in_backward, (link, ran) = 1, _running_node()
                    node = -1 if ran is None else nodes[ran]
                place = here.place
                if blocks.searches:
                    place = blocks.context(place, exchange=operation == ALL_TO_ALL)
                length = CALL_HEAD + len(splits)
                number = next(_numbers)
                # fmt: off
                put(_pack[length](
                    CALL, length, number, now_ns(), operation, members, contexts[place],
                    dtypes[dtype], threads[_thread()], in_backward, _grad(), link, node,
                    *fields, *splits,
                ))
                # fmt: on
                if output is not None and output.is_cuda:
                    event = completion.device.event()
            except Exception as error:
                # no error of the recording may reach the training
                number = -1
                sink.failed(name, error)
            if number < 0:
                return redispatch(further, *args)
            try:
                result = redispatch(further, *args)
            except BaseException:
                completion.raised(number)
                raise
            try:
                synchronous = single and len(args) > 5 and args[5] is False
                if synchronous and event is None and result is not None:
                    waiting.call = number, _unbox_work(result)  # the caller waits next
                else:
                    kind = 2 * operation + in_backward
                    completion.launched(number, result, output, kind, event)
            except Exception as error:
                sink.failed(name, error)
            return result

        return kernel

    return create


def _running_node() -> tuple[int, str | None]:
    """Return sequence number and name of the running autograd node."""
    node: Any = _node()  # None between two nodes
    if node is None:
        return -1, None
    # from the type: a Function of the program may set ctx.name to anything
    node_type = type(node)
    number = node_type._sequence_nr(node)
    # 2**64 - 1 for the node that accumulates a gradient, in which DDP's calls run
    return (number if number < NO_SEQUENCE else -1), node_type.name(node)


Described = tuple[
    "torch.Tensor | None", "torch.dtype | None", tuple[int, ...], list[int]
]
"""An output, the dtype, the words from source to receives, and the splits."""
Describe = Callable[[Sequence[Any], "dist.ProcessGroup"], Described]


def _all_to_all_single(args: Sequence[Any], _group: dist.ProcessGroup) -> Described:
    output, tensor, _, received, sent = args[:5]
    shape, arrived, dtype = tensor.shape, output.shape, tensor.dtype
    rows = shape[0] if shape else 0
    # nbytes is faster than the product of the other dimensions
    row = tensor.nbytes // rows if rows else dtype.itemsize * math.prod(shape[1:])
    return (
        *(output, dtype),
        (-1, -1, 0, row, rows, arrived[0] if arrived else 0, len(sent), len(received)),
        sent + received,
    )


def _all_to_all_list(args: Sequence[Any], _group: dist.ProcessGroup) -> Described:
    outputs, inputs = args[:2]
    # the tensors may have different shapes, so rows are single elements
    sent, received = [t.numel() for t in inputs], [t.numel() for t in outputs]
    dtype = inputs[0].dtype
    sizes = sum(sent), sum(received), len(sent), len(received)
    return outputs[0], dtype, (-1, -1, 0, dtype.itemsize, *sizes), sent + received


_DESCRIBE: dict[str, Describe] = {
    SINGLE: _all_to_all_single,
    "alltoall_": _all_to_all_list,
}


def _describer(name: str) -> Describe:
    operation, _, given = COLLECTIVES[name]

    def describe(args: Sequence[Any], group: dist.ProcessGroup) -> Described:
        tensors = list(_flat(args[given])) if given >= 0 else []
        output = next(_flat(args[0]), None)
        peers = (-1, -1)
        if name == "send":
            peers = (group.rank(), int(args[2]))
        elif operation == "send_recv":
            # that of any source is only known on arrival
            peers = (int(args[2]) if name == "recv_" else -1, group.rank())
        size = sum(t.numel() * t.element_size() for t in tensors)
        # only the root of a scatter has an input, but all ranks know its dtype
        typed = None if operation == "barrier" else next(iter(tensors), output)
        dtype = None if typed is None else typed.dtype
        return output, dtype, (*peers, size, 0, 0, 0, 0, 0), []

    return describe


def _flat(given: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested lists; other values contain none."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for part in given:
            yield from _flat(part)
