"""Record all collectives of a process with Python kernels in torch's dispatcher.

A kernel for each c10d operator at the dispatcher's BackendSelect key records the call
and forwards it.  This is below autograd, torch.compile, DDP's reducer and functional
collectives, and above the backends; other operators have no overhead.  A collective
inside a replayed CUDA graph does not pass through the dispatcher and is not recorded.
Where :mod:`.native` has been built, its compiled kernels make the same records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from moetraffic.capture import annotate
from moetraffic.capture.annotate import here
from moetraffic.capture.record_format import OPERATIONS
from moetraffic.errors import CaptureError

from .call_recording import EXCHANGE, KEY, OPERATOR, CallSink, GroupNames, recording

if TYPE_CHECKING:
    import torch.distributed as dist

_task = torch._C._current_graph_task_id
_thread = threading.get_ident
_unbox = torch.distributed.ProcessGroup.unbox
_unbox_work = torch.distributed.Work.unbox

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

_identity: Callable[[Any], object] = torch._C.DispatchKeySet.raw_repr
_installed: list[Callable[[], None]] = []
_stop_attached: Callable[[Path], None] | None = None


def installed() -> bool:
    """Whether a dispatcher hook is installed in this process."""
    return bool(_installed)


def check_not_installed() -> None:
    """Check that no recorder runs in this process."""
    if _installed:
        raise CaptureError(
            "one recorder runs in a process at a time, but one is running already: "
            "close it first"
        )


def set_attached_recorder(stop: Callable[[Path], None] | None) -> None:
    """Register how to stop the attached recorder when another one starts.

    ``stop``, given the other's trace, also removes the hook; it is None when the
    attached recorder has ended.
    """
    global _stop_attached
    _stop_attached = stop


def attached() -> bool:
    """Whether the running recorder was attached by ``moetraffic run``."""
    return _stop_attached is not None


def stop_attached_recorder(other: Path) -> None:
    """Stop the recorder of ``moetraffic run``, if any, as another writes a trace."""
    if _stop_attached is not None:
        _stop_attached(other)


def install(sink: CallSink, native: ModuleType | None = None) -> Callable[[], None]:
    """Install the dispatcher hook, which reports all c10d collectives to ``sink``.

    With the compiled hook ``native``, which stores the records of calls itself, Python
    kernels are not used.  The result is a function that removes the hook.
    """
    if native is not None:
        _install_native(sink, native)
        return uninstall
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    _installed.append(library._destroy)
    names: GroupNames = {}
    try:
        for name in COLLECTIVES:
            operator = getattr(torch.ops.c10d, name, None)
            if operator is not None:  # older releases lack some of the coalesced ones
                kernel = _kernel(
                    name, operator.default._handle.redispatch_boxed, sink, names
                )
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


def _install_native(sink: CallSink, native: ModuleType) -> None:
    def stand(place: annotate.CallContext) -> None:
        native.stand(sink.number("place", place))

    def arrive(operation: int) -> tuple[int, int, bool]:
        thread, place, blocks = (
            sink.number("thread", _thread()),
            here.place,
            sink.blocks,
        )
        searches = blocks.searches
        if searches:
            place = blocks.context(place, exchange=operation == EXCHANGE)
        return thread, sink.number("place", place), searches

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
    name: str,
    redispatch: Callable[..., Any],
    sink: CallSink,
    names: GroupNames,
) -> Callable[..., Any]:
    """Create the kernel of an operator, which records a call and forwards it."""
    after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
    python, meta = torch._C.DispatchKey.Python, torch._C.DispatchKey.Meta
    operation, position = OPERATIONS.index(COLLECTIVES[name][0]), COLLECTIVES[name][1]
    describe = _DESCRIBE.get(name) or _describer(name)
    single, record, before = name == OPERATOR, recording(sink, names), sink.before
    # methods of key sets take microseconds, and few sets occur
    following: dict[object, tuple[Any, bool]] = {}

    def kernel(keyset: Any, *args: Any) -> Any:
        number, output, event = -1, None, None
        bits = _identity(keyset)
        known = following.get(bits)
        if known is None:
            # a dispatch mode or tensor subclass calls the operator again with the plain
            # tensors that it sends; meta and fake tensors are not sent
            sends = not (keyset.has(python) or keyset.has(meta))
            known = following[bits] = keyset & after, sends
        further, sends = known
        if sends:
            try:
                group = _unbox(args[position])
                output, dtype, described = describe(args, group)
                number = record(group, operation, dtype, described)
                if output is not None and output.is_cuda:
                    event = before(output)
            except Exception as error:
                # no error of the recording may reach the training
                number = -1
                sink.failed(name, error)
        result = redispatch(further, *args)
        if number < 0:
            return result
        try:
            if single and event is None and len(args) > 5 and args[5] is False:
                # synchronous: the caller waits next
                sink.waiting.call = number, _unbox_work(result)
            else:
                kind = 2 * operation + (_task() != -1)
                sink.launched(number, result, output, kind, event)
        except Exception as error:
            sink.failed(name, error)
        return result

    return kernel


Described = tuple["torch.Tensor | None", "torch.dtype | None", tuple[Any, ...]]
"""An output, the dtype, and the last item of a record."""
Describe = Callable[[Sequence[Any], "dist.ProcessGroup"], Described]


def _all_to_all_single(args: Sequence[Any], _group: dist.ProcessGroup) -> Described:
    output, tensor, _, received, sent = args[:5]
    fields = -1, -1, 0, tensor.shape, output.shape, sent, received
    return output, tensor.dtype, fields


def _all_to_all_list(args: Sequence[Any], _group: dist.ProcessGroup) -> Described:
    outputs, inputs = args[:2]
    # the tensors may have different shapes, so rows are single elements
    sent, received = [t.numel() for t in inputs], [t.numel() for t in outputs]
    fields = -1, -1, 0, (sum(sent),), (sum(received),), sent, received
    return outputs[0], inputs[0].dtype, fields


_DESCRIBE: dict[str, Describe] = {
    OPERATOR: _all_to_all_single,
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
        elif name == "recv_":
            peers = (int(args[2]), group.rank())
        elif name == "recv_any_source_":
            peers = (-1, group.rank())  # the source is only known on arrival
        size = sum(t.numel() * t.element_size() for t in tensors)
        # only the root of a scatter has an input, but all ranks know its dtype
        typed = None if operation == "barrier" else next(iter(tensors), output)
        dtype = None if typed is None else typed.dtype
        return output, dtype, (*peers, size, (), (), (), ())

    return describe


def _flat(given: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested lists; other values contain none."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for part in given:
            yield from _flat(part)


def unboxed(group: Any) -> dist.ProcessGroup:
    """Return the Python object of a boxed process group."""
    boxed: dist.ProcessGroup = _unbox(group)
    return boxed
