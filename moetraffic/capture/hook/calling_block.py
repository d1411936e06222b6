"""Find the block of the model that makes the first all-to-alls of a process.

A block is a module in a container of another one (``layers.3``), or else the innermost
module of the program (``moe0``).  It is read from the interpreter's stack, so that
nothing is attached to the model, and only for a few thousand calls: the steps that
follow repeat them.  All-to-alls of one block in two of its calls are those of two
micro-batches or chunks; without this fact they could be those of two layers.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn

from moetraffic.capture.annotate import NO_CONTEXT, CallContext

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
MOST_CALLS = 4096  # of all collectives, whose stack is read
MOST_VAIN = 256  # all-to-alls that no block makes, after which the search ends
_CALL = nn.Module._call_impl.__code__
_task = torch._C._current_graph_task_id


class BlockSearch:
    """Search for the calling block of a process' first all-to-alls."""

    def __init__(self) -> None:
        self.searches = True
        self._calls = self._vain = 0
        self._numbers = itertools.count(1)
        # by block and ids of the modules around it: its number, with the parity of its
        # calls, and the last call's input
        self._blocks: WeakKeyDictionary[
            nn.Module, dict[tuple[int, ...], tuple[int, Any]]
        ] = WeakKeyDictionary()

    def context(self, place: CallContext, *, exchange: bool) -> CallContext:
        """Return the context of a call, with its block if no annotation names it."""
        self._calls += 1
        if self._calls >= MOST_CALLS or self._vain >= MOST_VAIN:
            self.searches = False
        if not exchange or place != NO_CONTEXT or _task() != -1:
            return place
        found = _calling_block(sys._getframe(1))
        number = 0 if found is None else self._number(*found)
        self._vain = 0 if number else self._vain + 1
        return CallContext(block=number) if number else place

    def _number(
        self, block: nn.Module, given: Mapping[str, Any], around: tuple[int, ...]
    ) -> int:
        values = (*given.get("args", ()), *given.get("kwargs", {}).values())
        tensor = next((v for v in values if isinstance(v, torch.Tensor)), None)
        if tensor is None:
            return 0  # its calls cannot be distinguished
        calls = self._blocks.setdefault(block, {})
        known = calls.get(around)
        number, last = known if known else (2 * next(self._numbers), _never)
        if last() is not tensor:
            number ^= 1
            calls[around] = number, ref(tensor)
        return number


def _never() -> ReferenceType[Any] | None:
    return None


def _calling_block(
    frame: FrameType | None,
) -> tuple[nn.Module, Mapping[str, Any], tuple[int, ...]] | None:
    """Return the running block, the local variables of its call, and what is around it.

    It is the innermost module that is in a container of the module around it, else the
    innermost module that is no wrapper of torch's.  A module that several layers share
    (a token dispatcher) is another block within each: of the latter, the ids of the
    modules around it are returned too.
    """
    inner: tuple[nn.Module, Mapping[str, Any]] | None = None
    own: tuple[nn.Module, Mapping[str, Any]] | None = None
    around: list[int] = []
    while frame is not None:
        if frame.f_code is _CALL:
            given = frame.f_locals
            module = given.get("self")
            if isinstance(module, nn.Module):
                if inner is not None and _contains(module, inner[0]):
                    return (*inner, ())
                inner = module, given
                if own is not None:
                    around.append(id(module))
                elif not type(module).__module__.startswith("torch."):
                    own = inner
        frame = frame.f_back
    return None if own is None else (*own, tuple(around))


def _contains(module: nn.Module, part: nn.Module) -> bool:
    """Return whether a part is a numbered one of a module or of its containers."""
    own = module.__dict__.get("_modules", {})
    if isinstance(module, CONTAINERS):
        return any(child is part for child in own.values())
    return any(
        child is part
        for holder in own.values()
        if isinstance(holder, CONTAINERS)
        for child in holder.__dict__.get("_modules", {}).values()
    )
