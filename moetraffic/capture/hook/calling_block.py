"""Find the module of the model that makes an all-to-all without annotation.

It is a module in a container of another one (``layers.3``), or else the innermost
module of the program (``moe0``).  It is read from the interpreter's stack, so that
nothing is attached to the model.  All-to-alls of one module in two of its calls are
those of two micro-batches; those of two modules are of two layers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import is_tensor, nn

from moetraffic.capture.annotate import NO_CONTEXT, CallContext
from moetraffic.capture.model_modules import CONTAINERS, ModelModules

WRAPPER_PACKAGES = ("torch.", "builtins", "abc", "typing")
"""Packages of the classes of wrappers; FSDP2 adds its own to that of a module."""
MOST_VAIN = 256  # all-to-alls that no module makes, after which the search ends
CONTAINED = (0,)  # instead of ids: the module is in a container, and so of one layer
_CALL = nn.Module._call_impl.__code__


class BlockSearch:
    """Search for the calling module of each all-to-all.

    ``number("module", description)`` numbers a module that is met for the first time.
    """

    def __init__(self, number: Callable[[str, Any], int]) -> None:
        self.searches = True
        self._number = number
        self._models = ModelModules()
        self._vain = 0
        # by module and ids of the modules around it: twice its number, plus the parity
        # of its calls, and the last call's input
        self._calls: WeakKeyDictionary[
            nn.Module, dict[tuple[int, ...], tuple[int, Any]]
        ] = WeakKeyDictionary()
        self._contexts: dict[tuple[int, int], CallContext] = {}

    def context(self, place: CallContext, *, exchange: bool) -> CallContext:
        """Return the context of a call, with its module if no program annotates it."""
        if not exchange or (place is not NO_CONTEXT and place != NO_CONTEXT):
            return place
        calling = _calling_module(sys._getframe(1), self._calls)
        context = place if calling is None else self._context(*calling)
        self._vain = 0 if context.module_call else self._vain + 1
        self.searches = self._vain < MOST_VAIN
        return context

    def _context(
        self, module: nn.Module, given: Mapping[str, Any], around: tuple[int, ...]
    ) -> CallContext:
        tensor: Any = next((v for v in given.get("args", ()) if is_tensor(v)), None)
        if tensor is None:
            named = given.get("kwargs", {}).values()
            tensor = next((v for v in named if is_tensor(v)), None)
            if tensor is None:
                return NO_CONTEXT  # its calls cannot be distinguished
        calls = self._calls.get(module)
        if calls is None:
            calls = self._calls[module] = {}
        if around not in calls:
            described = self._models.describe(module, around)
            calls[around] = 2 * self._number("module", described) + 2, _never
        call, last = calls[around]
        if last() is not tensor:
            call ^= 1
            calls[around] = call, ref(tensor)
        if not module.training:
            evaluates = 2
        else:
            evaluates = int(not (tensor.requires_grad or torch.is_grad_enabled()))
        key = call, evaluates
        context = self._contexts.get(key)
        if context is None:
            context = CallContext(module_call=call, evaluates=evaluates)
            self._contexts[key] = context
        return context


def _never() -> ReferenceType[Any] | None:
    return None


def _calling_module(
    frame: FrameType | None, known: Mapping[nn.Module, Mapping[tuple[int, ...], Any]]
) -> tuple[nn.Module, Mapping[str, Any], tuple[int, ...]] | None:
    """Return the calling module, the local variables of its call, and what is around.

    It is the innermost module that is in a container of the module around it, else the
    innermost module that is no wrapper of torch's, as in a recomputed pass.  A module
    that several layers share (a token dispatcher) is another one within each: of the
    latter, the ids of the modules around it are returned too, innermost first.
    ``known`` are modules that were found before, with what is around them.
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
                    return (*inner, CONTAINED)
                if CONTAINED in known.get(module, ()):
                    return module, given, CONTAINED
                inner = module, given
                if own is not None:
                    around.append(id(module))
                elif any(
                    not kind.__module__.startswith(WRAPPER_PACKAGES)
                    for kind in type(module).__mro__
                ):
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
