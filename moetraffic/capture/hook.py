"""See every collective of a process, whoever calls it.

A kernel for each c10d operator at the dispatcher's BackendSelect key notes the call
and passes it on.  That is below autograd, torch.compile, DDP's reducer and functional
collectives, and above the backends; other operators cost nothing.  A collective inside
a replayed CUDA graph never comes here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor

from moetraffic.errors import CaptureError

if TYPE_CHECKING:
    import torch.distributed as dist

KEY = "BackendSelect"
now_ns = time.perf_counter_ns


class Observer(Protocol):
    """Whoever is told of collectives; it must not raise."""

    def all_to_all(
        self,
        group: dist.ProcessGroup,
        tensor: torch.Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        row_bytes: int,
    ) -> Callable[[int], None]:
        """An all-to-all: rows to and from each member, and the bytes of a row.

        Returns what is called with the time (ns) at which it ended.
        """
        ...

    def collective(
        self,
        operation: str,
        group: dist.ProcessGroup,
        tensors: Sequence[torch.Tensor],
        peers: tuple[int, int],
    ) -> Callable[[int], None]:
        """Another collective, with the tensors of this rank's input."""
        ...

    def failed(self, operation: str, error: Exception) -> None:
        """Recording failed; the training goes on."""
        ...


def _flat(lists: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return [tensor for tensors in lists for tensor in tensors]


# operator: (what we call it, position of its process group, this rank's input tensors)
COLLECTIVES: dict[str, tuple[str, int, Callable[..., Sequence[torch.Tensor]]]] = {
    "allreduce_": ("all_reduce", 1, lambda a: a[0]),
    "allreduce_coalesced_": ("all_reduce", 1, lambda a: a[0]),
    "allgather_": ("all_gather", 2, lambda a: a[1]),
    "_allgather_base_": ("all_gather", 2, lambda a: [a[1]]),
    "allgather_coalesced_": ("all_gather", 2, lambda a: a[1]),
    "allgather_into_tensor_coalesced_": ("all_gather", 2, lambda a: a[1]),
    "reduce_scatter_": ("reduce_scatter", 2, lambda a: _flat(a[1])),
    "_reduce_scatter_base_": ("reduce_scatter", 2, lambda a: [a[1]]),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 2, lambda a: a[1]),
    "reduce_": ("reduce", 1, lambda a: a[0]),
    "broadcast_": ("broadcast", 1, lambda a: a[0]),
    "gather_": ("gather", 2, lambda a: a[1]),
    "scatter_": ("scatter", 2, lambda a: _flat(a[1])),
    "barrier": ("barrier", 1, lambda a: []),
    "send": ("send_recv", 1, lambda a: a[0]),
    "recv_": ("send_recv", 1, lambda a: a[0]),
}

_installed: list[torch.library.Library] = []


def installed() -> bool:
    """Whether a hook is in place in this process."""
    return bool(_installed)


def install(observer: Observer) -> Callable[[], None]:
    """Tell ``observer`` of every c10d collective from now on.

    Returns
    -------
    callable
        Takes the hook out again.

    Raises
    ------
    CaptureError
        If a hook is in place already, or this torch has no such dispatcher.
    """
    if _installed:
        # a second library on the same operator and key would silently replace the first
        raise CaptureError(
            "one recorder runs in a process at a time, but one is running already: "
            "close it first"
        )
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    _installed.append(library)
    try:
        for name in ("alltoall_base_", "alltoall_", *COLLECTIVES):
            operator = getattr(torch.ops.c10d, name, None)
            if operator is not None:  # older releases lack some of the coalesced ones
                kernel = _kernel(name, operator.default.redispatch, observer)
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
    """Take the hook out; without one this does nothing."""
    while _installed:
        _installed.pop()._destroy()  # type: ignore[no-untyped-call]


def _kernel(
    name: str, redispatch: Callable[..., Any], observer: Observer
) -> Callable[..., Any]:
    after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
    note = {
        "alltoall_base_": _note_all_to_all_single,
        "alltoall_": _note_all_to_all_list,
    }.get(name) or _noter(name)

    def kernel(keyset: Any, *args: Any, **named: Any) -> Any:
        ended = None
        try:
            ended = note(observer, args)
        except Exception as error:
            # whatever it is, the training must not notice
            observer.failed(name, error)
        result = redispatch(keyset & after, *args, **named)
        if ended is not None:
            _when_done(result, ended)
        return result

    return kernel


def _noter(
    name: str,
) -> Callable[[Observer, Sequence[Any]], Callable[[int], None] | None]:
    operation, position, inputs = COLLECTIVES[name]

    def note(observer: Observer, args: Sequence[Any]) -> Callable[[int], None] | None:
        group = unboxed(args[position])
        tensors = inputs(args)
        if any(isinstance(t, FakeTensor) for t in tensors):
            return None
        peers = (-1, -1)
        if name == "send":
            peers = (group.rank(), int(args[2]))
        elif name == "recv_":
            peers = (int(args[2]), group.rank())
        return observer.collective(operation, group, tensors, peers)

    return note


def _note_all_to_all_single(
    observer: Observer, args: Sequence[Any]
) -> Callable[[int], None] | None:
    output, tensor, boxed, received, sent = args[:5]
    if isinstance(tensor, FakeTensor):
        return None
    group = unboxed(boxed)
    width = group.size()
    row = 1
    for length in tensor.shape[1:]:
        row *= length
    return observer.all_to_all(
        group,
        tensor,
        # an empty list means equal parts
        sent or [tensor.shape[0] // width] * width,
        received or [output.shape[0] // width] * width,
        row * tensor.element_size(),
    )


def _note_all_to_all_list(
    observer: Observer, args: Sequence[Any]
) -> Callable[[int], None] | None:
    outputs, inputs, boxed = args[:3]
    if any(isinstance(t, FakeTensor) for t in inputs):
        return None
    # the parts may have any shapes: an element is the only row they share
    return observer.all_to_all(
        unboxed(boxed),
        inputs[0],
        [t.numel() for t in inputs],
        [t.numel() for t in outputs],
        inputs[0].element_size(),
    )


def unboxed(group: Any) -> dist.ProcessGroup:
    """The Python object of a process group that an operator was given."""
    found: dist.ProcessGroup = torch.distributed.ProcessGroup.unbox(group)
    return found


def _when_done(result: Any, ended: Callable[[int], None]) -> None:
    """Have ``ended`` called with the time at which the operation's work is done."""
    work = result[-1] if isinstance(result, tuple) else result
    try:
        future = torch.distributed.Work.unbox(work).get_future()
        future.add_done_callback(lambda _: ended(now_ns()))
    except (AttributeError, RuntimeError):
        return  # this work has no future: its end stays unknown
