"""Record all collectives of a process with Python kernels in torch's dispatcher.

A kernel for each c10d operator at the dispatcher's BackendSelect key records the call
and forwards it.  This is below autograd, torch.compile, DDP's reducer and functional
collectives, and above the backends; other operators have no overhead.  A collective
inside a replayed CUDA graph does not pass through the dispatcher and is not recorded.
Where :mod:`.native` has been built, its compiled kernels make the same records.

The kernels run in the training thread, so they record only what is not available later,
and hold no tensor: everything else is computed elsewhere
(:mod:`moetraffic.capture.records.journal`,
:mod:`moetraffic.capture.records.committer`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from moetraffic.capture import annotate
from moetraffic.capture.annotate import here
from moetraffic.capture.pipe_format import CALL, OPERATIONS
from moetraffic.errors import CaptureError

if TYPE_CHECKING:
    import torch.distributed as dist

    from .native import Native

KEY = "BackendSelect"
NO_SEQUENCE = 2**62
now_ns = time.perf_counter_ns

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_sequence = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_NO_SEQUENCE = 2**63
_grad = torch.is_grad_enabled
_thread = threading.get_ident

Record = tuple[Any, ...]
"""``(CALL, number, issue, operation, group, place, dtype, thread, in_backward, grad,
link, node, source, destination, bytes, shape, rows_received, sent, received)``: the
name of the group, the shape of the input, and the split sizes passed to the call."""


class SynchronousCall(threading.local):
    """Thread-local number of the synchronous call that the thread waits for next."""

    number: int | None = None


class CallSink(Protocol):
    """Interface of a receiver of recorded collectives; its methods must not raise."""

    def put(self, record: Record) -> None:
        """Receive the record of a collective."""
        ...

    def meet(self, group: dist.ProcessGroup) -> None:
        """Register a process group at its first collective."""
        ...

    waiting: SynchronousCall

    def before(self, tensor: torch.Tensor | None) -> Any:
        """Record a device event before a call with an output on that device."""
        ...

    def launched(
        self,
        number: int,
        result: Any,
        tensor: torch.Tensor | None,
        kind: int,
        before: Any,
    ) -> None:
        """Track a launched collective until it completes; see :mod:`.completion`."""
        ...

    def failed(self, operation: str, error: Exception) -> None:
        """Report that a collective could not be recorded."""
        ...

    def number(self, kind: str, name: Any) -> int:
        """Return the number of a group, context, dtype, thread or autograd node."""
        ...


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
    "alltoall_base_": ("all_to_all", 2, 1),
    "alltoall_": ("all_to_all", 2, 1),
}

_installed: list[Callable[[], None]] = []
_gives_way: Callable[[], None] | None = None


def installed() -> bool:
    """Whether a dispatcher hook is installed in this process."""
    return bool(_installed)


def set_attached_recorder(step_back: Callable[[], None] | None) -> None:
    """Register the attached recorder, which is stopped when another recorder starts.

    Parameters
    ----------
    step_back
        Stops the attached recorder and removes its hook; None when it has ended.
    """
    global _gives_way
    _gives_way = step_back


def stop_attached_recorder() -> None:
    """Stop the recorder attached by ``moetraffic run``, if there is one."""
    if _gives_way is not None:
        _gives_way()


def install(sink: CallSink, native: Native | None = None) -> Callable[[], None]:
    """Install the dispatcher hook, which reports all c10d collectives to ``sink``.

    Parameters
    ----------
    sink
        Receiver of the records.
    native
        The compiled hook, which stores the records of calls itself; None uses the
        Python kernels.

    Returns
    -------
    callable
        Function that removes the hook.

    Raises
    ------
    CaptureError
        If a hook is already installed, or this version of torch is not supported.
    """
    if _installed:
        # a second library on the same operator and key would silently replace the first
        raise CaptureError(
            "one recorder runs in a process at a time, but one is running already: "
            "close it first"
        )
    if native is not None:
        _install_native(sink, native)
        return uninstall
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    _installed.append(library._destroy)
    try:
        for name in COLLECTIVES:
            operator = getattr(torch.ops.c10d, name, None)
            if operator is not None:  # older releases lack some of the coalesced ones
                kernel = _kernel(name, operator.default._handle.redispatch_boxed, sink)
                library.impl(  # type: ignore[no-untyped-call]
                    name, kernel, KEY, with_keyset=True
                )
    except (AttributeError, TypeError) as error:
        uninstall()
        raise CaptureError(
            f"the hook needs torch's dispatcher as of release 2.4 or newer, but torch "
            f"{torch.__version__} refuses it ({error}): upgrade torch"
        ) from None
    return uninstall


def uninstall() -> None:
    """Remove the dispatcher hook, if it is installed."""
    while _installed:
        _installed.pop()()


def _install_native(sink: CallSink, native: Native) -> None:
    def stand(place: annotate.CallContext) -> None:
        native.stand(sink.number("place", place))

    def arrive() -> tuple[int, int]:
        thread, place = sink.number("thread", _thread()), here.place
        return thread, sink.number("place", place)

    def meet(boxed: Any) -> int:
        group = unboxed(boxed)
        sink.meet(group)
        return sink.number("group", group.group_name)

    def number(kind: str, name: Any) -> int:
        # a dtype is given by a tensor of that dtype
        return sink.number(kind, getattr(name, "dtype", name))

    native.install(
        [
            (name, OPERATIONS.index(operation), group, given)
            for name, (operation, group, given) in COLLECTIVES.items()
        ],
        arrive,
        meet,
        number,
        sink.before,
        sink.launched,
        lambda name, why: sink.failed(name, RuntimeError(why)),
    )
    annotate.mirror(stand)
    _installed.append(native.uninstall)
    _installed.append(lambda: annotate.mirror(None))


def _kernel(
    name: str, redispatch: Callable[..., Any], sink: CallSink
) -> Callable[..., Any]:
    after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
    if name == "alltoall_base_":
        return _all_to_all_single(redispatch, after, sink)
    note = _note_all_to_all_list if name == "alltoall_" else _noter(name)
    operation = OPERATIONS.index(COLLECTIVES[name][0])
    python, meta = torch._C.DispatchKey.Python, torch._C.DispatchKey.Meta
    met: set[str] = set()

    def kernel(keyset: Any, *args: Any) -> Any:
        number, tensor, event = -1, None, None
        try:
            if not (keyset.has(python) or keyset.has(meta)):
                number, tensor = note(sink, met, args)
                event = sink.before(tensor)
        except Exception as error:
            # no error of the recording may reach the training
            sink.failed(name, error)
        result = redispatch(keyset & after, *args)
        if number >= 0:
            try:
                kind = 2 * operation + (_task() != -1)
                sink.launched(number, result, tensor, kind, event)
            except Exception as error:
                sink.failed(name, error)
        return result

    return kernel


_numbers = itertools.count()
_unbox = torch.distributed.ProcessGroup.unbox


def _all_to_all_single(
    redispatch: Callable[..., Any], after: Any, sink: CallSink
) -> Callable[..., Any]:
    """Create the kernel of ``all_to_all_single``, specialized for MoE layers."""
    put, meet, launched = sink.put, sink.meet, sink.launched
    operation, waiting = OPERATIONS.index("all_to_all"), sink.waiting
    python, meta = torch._C.DispatchKey.Python, torch._C.DispatchKey.Meta
    met: set[str] = set()

    def kernel(
        keyset: Any,
        output: torch.Tensor,
        tensor: torch.Tensor,
        boxed: Any,
        received: list[int],
        sent: list[int],
        *rest: Any,
    ) -> Any:
        number, event, again = -1, None, 0
        # a dispatch mode or tensor subclass calls the operator again with the plain
        # tensors that it sends; meta and fake tensors are not sent
        if not (keyset.has(python) or keyset.has(meta)):
            try:
                number = next(_numbers)
                group = _unbox(boxed)
                name = group.group_name
                if name not in met:
                    meet(group)
                    met.add(name)
                if _task() == -1:
                    link, ran = _sequence() - 1, None
                else:
                    again = 1
                    link, ran = _running()
                # fmt: off
                put((
                    CALL, number, now_ns(), operation, name, here.place,
                    tensor.dtype, _thread(), again, _grad(), link, ran,
                    -1, -1, 0, tensor.shape, output.shape[0], sent, received,
                ))
                # fmt: on
                if tensor.is_cuda:
                    event = sink.before(tensor)
            except Exception as error:
                number = -1
                sink.failed("alltoall_base_", error)
        result = redispatch(
            keyset & after, output, tensor, boxed, received, sent, *rest
        )
        if number >= 0:
            if rest and rest[0] is False and event is None:
                waiting.number = number  # synchronous: the caller waits next
                return result
            try:
                launched(number, result, output, again, event)
            except Exception as error:
                sink.failed("alltoall_base_", error)
        return result

    return kernel


def _running() -> tuple[int, str | None]:
    """Return sequence number and name of the running autograd node."""
    node: Any = _node()  # None between two nodes
    if node is None:
        return -1, None
    number = node._sequence_nr()
    # 2**64 - 1 for the node that accumulates a gradient, in which DDP's calls run
    return (number if number < _NO_SEQUENCE else -1), node.name()


def _flat(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    else:
        for part in given:
            yield from _flat(part)


Note = Callable[[CallSink, set[str], Sequence[Any]], tuple[int, "torch.Tensor | None"]]


def _noter(name: str) -> Note:
    operation, position, given = COLLECTIVES[name]
    index = OPERATIONS.index(operation)

    def note(
        sink: CallSink, met: set[str], args: Sequence[Any]
    ) -> tuple[int, torch.Tensor | None]:
        tensors = list(_flat(args[given])) if given >= 0 else []
        group = unboxed(args[position])
        peers = (-1, -1)
        if name == "send":
            peers = (group.rank(), int(args[2]))
        elif name == "recv_":
            peers = (int(args[2]), group.rank())
        elif name == "recv_any_source_":
            peers = (-1, group.rank())  # the source is only known on arrival
        size = sum(t.numel() * t.element_size() for t in tensors)
        first = args[0]
        while isinstance(first, list | tuple) and first:
            first = first[0]
        output = first if isinstance(first, torch.Tensor) else None
        # only the root of a scatter has an input, but all ranks know its dtype
        typed = None if operation == "barrier" else next(iter(tensors), output)
        dtype = None if typed is None else typed.dtype
        number = _put(sink, met, index, group, dtype, peers, size, (), 0, (), ())
        return number, output

    return note


def _note_all_to_all_list(
    sink: CallSink, met: set[str], args: Sequence[Any]
) -> tuple[int, torch.Tensor | None]:
    outputs, inputs, boxed = args[:3]
    # the tensors may have different shapes, so rows are single elements
    sent, received = [t.numel() for t in inputs], [t.numel() for t in outputs]
    operation, group = OPERATIONS.index("all_to_all"), unboxed(boxed)
    dtype, rows = inputs[0].dtype, (sum(sent),)
    number = _put(
        sink,
        met,
        operation,
        group,
        dtype,
        (-1, -1),
        0,
        rows,
        sum(received),
        sent,
        received,
    )
    return number, outputs[0]


def _put(
    sink: CallSink,
    met: set[str],
    operation: int,
    group: dist.ProcessGroup,
    dtype: torch.dtype | None,
    peers: tuple[int, int],
    size: int,
    shape: Sequence[int],
    rows_received: int,
    sent: Sequence[int],
    received: Sequence[int],
) -> int:
    name = group.group_name
    if name not in met:
        sink.meet(group)
        met.add(name)
    number = next(_numbers)
    if _task() == -1:
        again, link, ran = 0, _sequence() - 1, None
    else:
        again, (link, ran) = 1, _running()
    sink.put(
        (
            *(CALL, number, now_ns(), operation, name, here.place),
            *(dtype, _thread(), again, _grad(), link, ran),
            *(*peers, size, shape, rows_received, sent, received),
        )
    )
    return number


def unboxed(group: Any) -> dist.ProcessGroup:
    """Return the Python object of a boxed process group."""
    found: dist.ProcessGroup = _unbox(group)
    return found
