"""Forward hooks on the routers of a model, which record their expert choices.

Routers are recognized by the names of their classes (:mod:`.router_readers`), whether
they are created before or after the hooks are installed.  Other modules have no
overhead.  The module that contains a router is the MoE layer: while it runs,
collectives without an annotation of their own are assigned to its layer.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from moetraffic.capture import annotate
from moetraffic.capture.annotate import CallContext, RoutingSink
from moetraffic.errors import CaptureError

from . import layer_index, router_readers
from .observed_router import (
    LayerHooks,
    ObservedRouter,
    has_no_values,
    local,
)

log = logging.getLogger("moetraffic")

LABEL = "router"
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
Failure = Callable[[str, Exception], Any]

_installed: list[RouterHooks] = []


def router(
    kind: type[nn.Module] | str,
    ids: Callable[[Sequence[Any], Any], Any],
    *,
    experts: int | None = None,
) -> Callable[[], None]:
    """Register a third-party router class, whose expert choices are then recorded.

    ::

        capture.router(MyGate, lambda inputs, output: output[1], experts=8)

    Parameters
    ----------
    kind
        The class, or its full name ``"package.module.MyGate"``; includes subclasses.
    ids
        Function that maps positional arguments and output of ``forward`` to the experts
        of this rank's tokens: integer ids of any shape (-1 for none), a bool mask
        ``[..., E]``, or None where nothing was routed.
    experts
        The number of experts E; by default the router's attribute ``num_experts`` or
        the like. Masks need none.

    Returns
    -------
    callable
        Function that removes the registration.

    Raises
    ------
    CaptureError
        If ``kind`` is not a class or name, or ``ids`` is not callable.

    Notes
    -----
    An installed package can register a router by an entry point in the group
    ``moetraffic.router_readers``, with the class's full name and such a function.
    """
    full = "." in kind if isinstance(kind, str) else inspect.isclass(kind)
    if not full:
        raise CaptureError(
            "a router is identified by its class or the class's full name, such as "
            f"'package.module.MyGate', not {kind!r}: give one of these"
        )
    if not callable(ids):
        raise CaptureError(
            f"the experts are read by a function of inputs and output, not {ids!r}: "
            "give one"
        )
    if experts is not None and (type(experts) is not int or experts < 1):
        raise CaptureError(
            f"a router has a number of experts from 1 on, not {experts!r}: change it"
        )
    name = kind if isinstance(kind, str) else router_readers.full_name(kind)
    undo = router_readers.register(name, router_readers.reader_of_ids(ids, experts))
    for hooks in _installed:
        hooks.scan()
    return undo


def watch_routers(
    on_routing: RoutingSink = annotate.routing,
    *,
    on_failure: Failure | None = None,
    on_router: Callable[[str, int], object] | None = None,
    model: nn.Module | None = None,
    choices: bool = False,
) -> Callable[[], None]:
    """Install forward hooks that report the demand of all known routers.

    ``on_routing`` is called with the arguments of
    :func:`moetraffic.capture.annotate.routing`: layer, demand ``[E]`` int64, dropped
    copies as in a :class:`~.router_readers.Decision`, and the expert-parallel group or
    None; with ``choices``, also with the keyword argument ``chosen``, the experts of
    each token or None.  The thread's context has the label ``"router"`` during the
    call, which must not raise.
    ``on_failure`` is called with ``"router"`` and the error where a router cannot be
    read; such an error does not reach the model.  If absent, each distinct error is
    logged once.  ``on_router`` is called with the name of a router's class and the
    experts per token, 0 unless the shapes of its ids and inputs show them.  All live
    modules are searched for routers, or only ``model``.  Returns the function that
    removes all hooks.

    Notes
    -----
    Nothing is reported for fake tensors, while a CUDA graph is captured, or if the
    program itself reports a layer's routing through
    :func:`moetraffic.capture.annotate.routing`.  In a compiled module, a graph operator
    reports (see :mod:`.observed_router`).
    """
    hooks = RouterHooks(on_routing, on_failure, on_router, model, choices=choices)
    hooks.scan()
    return hooks.undo


class RouterHooks:
    """The hooks installed by one call of :func:`watch_routers`."""

    def __init__(
        self,
        sink: RoutingSink,
        failure: Failure | None,
        on_router: Callable[[str, int], object] | None,
        model: nn.Module | None,
        *,
        choices: bool = False,
    ) -> None:
        self._sink, self._failure, self._model = sink, failure, model
        self._choices, self._on_router = choices, on_router
        self._lock = threading.RLock()
        self._routers: WeakKeyDictionary[nn.Module, ObservedRouter] = (
            WeakKeyDictionary()
        )
        self._layers: WeakKeyDictionary[nn.Module, LayerHooks] = WeakKeyDictionary()
        self._readers: WeakKeyDictionary[type, router_readers.Reader | None] = (
            WeakKeyDictionary()
        )
        self._numbering = layer_index.LayerNumbering()
        self._own_program: set[int] = set()  # layers whose routing the program reports
        self._reporting = threading.local()
        self._warned: set[str] = set()
        self._closed = False
        registration = nn.modules.module.register_module_module_registration_hook
        self._undo = contextlib.ExitStack()
        self._undo.callback(annotate.subscribe(self._reported_by_program))
        self._undo.callback(registration(self._attached).remove)
        _installed.append(self)

    # ---- finding ---------------------------------------------------------------

    def scan(self) -> None:
        """Find the existing routers of the process and install hooks on them."""
        with self._lock:
            self._readers.clear()
            modules = self._modules()
            held = layer_index.holders(modules)
            for module in modules:
                if self._reader(type(module)) is None:
                    continue
                path = layer_index.path_of(module, held)
                holder = next(
                    (h for h, _ in reversed(path) if not isinstance(h, CONTAINERS)),
                    None,
                )
                self._found(module, holder)

    def _modules(self) -> list[nn.Module]:
        if self._model is not None:
            return list(self._model.modules())
        return layer_index.modules_alive()

    def _reader(self, kind: type) -> router_readers.Reader | None:
        if kind not in self._readers:
            self._readers[kind] = router_readers.reader_for(kind)
        return self._readers[kind]

    def _attached(self, holder: nn.Module, _name: str, child: nn.Module | None) -> None:
        """Hook a router when it is added to its parent module (called by torch)."""
        try:
            if child is None or self._model is not None:
                return
            members: list[nn.Module] = []
            if isinstance(child, CONTAINERS):
                members = [m for m in child.children() if m in self._routers]
            elif self._reader(type(child)) is not None:
                members = [child]
            around = None if isinstance(holder, CONTAINERS) else holder
            with self._lock:
                for member in members:
                    self._found(member, around)
        except Exception as error:
            # no error may prevent the construction of the model
            self.failed(error)

    def _found(self, module: nn.Module, holder: nn.Module | None) -> None:
        """Install hooks on a router and its parent module."""
        if holder is not None and type(holder).__module__.startswith("moetraffic."):
            return  # the package's own models report their routing
        entry = self._routers.get(module)
        if entry is None:
            reader = self._reader(type(module))
            assert reader is not None
            entry = self._routers[module] = ObservedRouter(self, reader, module)
            # before other hooks, which may change the router's output
            handle = module.register_forward_hook(entry, prepend=True)
            self._undo.callback(handle.remove)
        if holder is None or entry.holder() is not None:
            return
        entry.holder = ref(holder)
        if holder not in self._layers:
            around = self._layers[holder] = LayerHooks(self, entry)
            before = holder.register_forward_pre_hook(around.enter, prepend=True)
            after = holder.register_forward_hook(around.leave, always_call=True)
            self._undo.callback(before.remove)
            self._undo.callback(after.remove)

    # ---- what the hooks call ---------------------------------------------------

    def routed(
        self,
        entry: ObservedRouter,
        module: nn.Module | None,
        inputs: Sequence[Any],
        output: Any,
    ) -> None:
        """Read the expert demand from a router's output and report it."""
        if self._closed or module is None or has_no_values(output):
            return
        before = annotate.place()
        try:
            with torch.no_grad(), _disable_current_modes():
                decision = entry.reader(module, inputs, local(output))
                if decision is None:
                    return
                told: dict[str, Any] = {}
                if self._choices:
                    told["chosen"] = decision.chosen and decision.chosen()
            layer = before.layer
            if before.linked or layer < 0:
                layer = self.layer(self._first_of_layer(entry))
            if layer in self._own_program:
                return
            if self._on_router is not None:
                self._on_router(type(module).__name__, decision.k)
            group = entry.group()
            self._reporting.on = True
            annotate.set_context(CallContext(layer, "", LABEL, linked=True))
            self._sink(layer, decision.demand, decision.dropped, group, **told)
        except Exception as error:
            # no error of the recording may reach the training
            self.failed(error)
        finally:
            annotate.set_context(before)
            self._reporting.on = False

    def layer(self, entry: ObservedRouter) -> int:
        """Return the layer number of a router, determined on first use."""
        if entry.layer < 0:
            with self._lock:
                self._place_model(entry)
                if entry.layer < 0:
                    entry.layer = self._numbering.next()
        return entry.layer

    def _first_of_layer(self, entry: ObservedRouter) -> ObservedRouter:
        """Return the first router of a layer (Tutel layers have several gates)."""
        holder = entry.holder()
        around = None if holder is None else self._layers.get(holder)
        return entry if around is None else around.router

    def _place_model(self, called: ObservedRouter) -> None:
        """Number all routers of a router's model, in order of definition.

        Models that have not been called are ignored: they would shift layer numbers.
        """
        module = called.module()
        if module is None:
            return
        held = layer_index.holders(self._modules())
        path = layer_index.path_of(module, held)
        root = path[0][0] if path else module
        parts = [
            (part, self._routers[part])
            for part in root.modules()
            if part in self._routers and self._routers[part].layer < 0
        ]
        numbers = self._numbering.number(
            [layer_index.position_of(part, held) for part, _ in parts]
        )
        for (_, entry), number in zip(parts, numbers, strict=True):
            if number is not None:
                entry.layer = number

    def _reported_by_program(
        self, layer: int, _demand: Any, _dropped: Any, _group: Any
    ) -> None:
        if not getattr(self._reporting, "on", False):
            self._own_program.add(layer)

    def failed(self, error: Exception) -> None:
        """Report or log a router whose output could not be read."""
        if self._failure is not None:
            self._failure(LABEL, error)
        elif str(error) not in self._warned:
            self._warned.add(str(error))
            log.warning("a router's decision is not recorded: %s", error)

    def undo(self) -> None:
        """Remove all hooks on routers and MoE layers."""
        if self._closed:
            return
        self._closed = True
        _installed.remove(self)
        for name in router_readers.unmatched():
            log.warning(
                "capture.router names the class %s, but this process has no module of "
                "it: if it has experts, give the class, or its full name",
                name,
            )
        self._undo.close()
        # copied modules have hooks without handles
        for module in layer_index.modules_alive():
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                for key, hook in list(hooks.items()):
                    owner: Any = getattr(hook, "__self__", hook)
                    ours = isinstance(owner, (ObservedRouter, LayerHooks))
                    if ours and owner.hooks is self:
                        del hooks[key]
