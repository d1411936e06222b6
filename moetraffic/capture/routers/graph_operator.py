"""Custom torch operator that reports routings from compiled graphs.

In a module that torch compiles, a router's hook becomes one operator of the graph,
``moetraffic::routed``: it causes no graph break, and passes the router's output
to the hook when the graph runs.  The operator declares that it mutates a tensor, so
that dead-code elimination keeps it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from .observed_router import ObservedRouter

_entries: WeakValueDictionary[int, ObservedRouter] = WeakValueDictionary()
_numbers = itertools.count(1)
_ledger = torch.zeros(1, dtype=torch.int8)
"""Tensor that the operator declares to mutate; a temporary one could be eliminated."""


def register_router(entry: ObservedRouter) -> int:
    """Register a router hook; return the number that identifies it in a graph."""
    number = next(_numbers)
    _entries[number] = entry
    return number


def emit(key: int, output: Any) -> None:
    """Insert the reporting operator into the traced graph."""
    values = output if isinstance(output, (tuple, list)) else (output,)
    tensors, at = [], []
    for position, value in enumerate(values):
        if isinstance(value, Tensor):
            tensors.append(value.detach())
            at.append(position)
    if tensors:
        single = not isinstance(output, (tuple, list))
        length = -1 if single else len(values)
        torch.ops.moetraffic.routed(tensors, at, length, key, _ledger)


@torch.library.custom_op(
    "moetraffic::routed",
    mutates_args=("ledger",),
    schema="(Tensor[] tensors, int[] at, int length, int key, Tensor(a!) ledger) -> ()",
)
def routed(
    tensors: list[Tensor], at: list[int], length: int, key: int, ledger: Tensor
) -> None:
    """Pass a router's output tensors to its hook when the graph runs."""
    entry = _entries.get(key)
    if entry is None:
        return
    output: Any = tensors[0]
    if length >= 0:
        values: list[Any] = [None] * length
        for position, tensor in zip(at, tensors, strict=True):
            values[position] = tensor
        output = tuple(values)
    entry.hooks.routed(entry, entry.module(), (), output)


@routed.register_fake
def _(
    tensors: list[Tensor], at: list[int], length: int, key: int, ledger: Tensor
) -> None:
    return None


def has_no_values(output: Any) -> bool:
    """Whether an output has no readable values (fake tensor or CUDA graph capture)."""
    values = output if isinstance(output, (tuple, list)) else (output,)
    for value in values:
        if isinstance(value, Tensor):
            if isinstance(value, FakeTensor) or value.is_meta:
                return True
            return value.is_cuda and torch.cuda.is_current_stream_capturing()
    return False


def local(output: Any) -> Any:
    """Replace distributed tensors of an output by their local shards."""
    if isinstance(output, tuple):
        return tuple(local(value) for value in output)
    if isinstance(output, Tensor) and hasattr(output, "to_local"):
        return output.to_local()
    return output


@contextlib.contextmanager
def no_modes() -> Iterator[None]:
    """Disable dispatch modes, so that selective checkpointing ignores the hook."""
    if torch._C._len_torch_dispatch_stack() == 0:
        yield
        return
    with _disable_current_modes():
        yield
