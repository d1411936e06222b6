"""Forward hooks on the routers of a model, which record their expert choices.

Routers are recognized by the names of their classes (:mod:`.router_readers`), whether
they are created before or after the hooks are installed.  Other modules have no
overhead.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from moetraffic.capture import annotate
from moetraffic.capture.annotate import RoutingSink, require
from moetraffic.capture.model_modules import CONTAINERS, modules_alive

from . import layer_index, router_readers
from .observed_router import ObservedRouter, has_no_values, local

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

    Notes
    -----
    An installed package can register a router by an entry point in the group
    ``moetraffic.router_readers``, with the class's full name and such a function.
    """
    require(
        "." in kind if isinstance(kind, str) else inspect.isclass(kind),
        "a router is identified by its class or the class's full name, such as "
        "'package.module.MyGate'",
        kind,
    )
    rule = "the experts are read by a function of inputs and output"
    require(callable(ids), rule, ids)
    valid = experts is None or (type(experts) is int and experts > 0)
    require(valid, "a router has a number of experts from 1 on", experts)
    name = kind if isinstance(kind, str) else router_readers.full_name(kind)
    undo = router_readers.register(name, router_readers.reader_of_ids(ids, experts))
    for hooks in _installed:
        hooks.scan()
    return undo


def watch_routers(
    on_routing: RoutingSink,
    *,
    on_failure: Callable[[Exception], Any] = lambda error: None,
    on_router: Callable[[str, int], Any] = lambda name, k: None,
    choices: bool = False,
) -> Callable[[], None]:
    """Report the demand of all known routers; return the function that ends it.

    ``on_routing`` receives what :func:`.annotate.routing` does (``chosen`` only with
    ``choices``), and ``on_router`` the name of a router's class and its experts per
    token, 0 if unknown.  Nothing is reported for fake tensors, while a CUDA graph is
    captured, or of layers whose routing the program itself reports.
    """
    hooks = RouterHooks(on_routing, on_failure, on_router, choices)
    hooks.scan()
    return hooks.undo


@dataclass(eq=False)
class RouterHooks:
    """The hooks installed by one call of :func:`watch_routers`."""

    on_routing: RoutingSink
    on_failure: Callable[[Exception], Any]
    on_router: Callable[[str, int], Any]
    choices: bool

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._routers = WeakKeyDictionary[nn.Module, ObservedRouter]()
        self._first = WeakKeyDictionary[nn.Module, ObservedRouter]()  # by MoE layer
        self._numbering = layer_index.LayerNumbering()
        self._own_program: set[int] = set()  # layers whose routing the program reports
        self._closed = False
        registration = nn.modules.module.register_module_module_registration_hook
        self._undo = contextlib.ExitStack()
        self._undo.callback(annotate.subscribe(self._reported))
        self._undo.callback(registration(self._attached).remove)
        _installed.append(self)

    # ---- finding ---------------------------------------------------------------

    def scan(self) -> None:
        """Find the existing routers of the process and install hooks on them."""
        with self._lock:
            modules = modules_alive()
            parents = layer_index.parents_of(modules)
            for module in modules:
                if router_readers.reader_for(type(module)) is not None:
                    path = layer_index.path_of(module, parents)
                    above = (parent for parent, _ in reversed(path))
                    holders = (p for p in above if not isinstance(p, CONTAINERS))
                    self._hook(module, next(holders, None))

    def _attached(self, holder: nn.Module, _name: str, child: nn.Module | None) -> None:
        """Hook a router when it is added to its parent module (called by torch)."""
        if child is None:
            return
        try:
            parent = None if isinstance(holder, CONTAINERS) else holder
            with self._lock:
                if isinstance(child, CONTAINERS):
                    for member in child.children():
                        if member in self._routers:
                            self._hook(member, parent)
                elif router_readers.reader_for(type(child)) is not None:
                    self._hook(child, parent)
        except Exception as error:
            # no error may prevent the construction of the model
            self.on_failure(error)

    def _hook(self, module: nn.Module, holder: nn.Module | None) -> None:
        """Install the hook on a router, and note the MoE layer that contains it."""
        if type(holder).__module__.startswith("moetraffic."):
            return  # the package's own models report their routing
        entry = self._routers.get(module)
        if entry is None:
            reader = router_readers.reader_for(type(module))
            assert reader is not None
            entry = self._routers[module] = ObservedRouter(self, reader, module)
            # before other hooks, which may change the router's output
            module.register_forward_hook(entry, prepend=True)
        if holder is not None and (entry.holder is None or entry.holder() is None):
            entry.holder = ref(holder)
            self._first.setdefault(holder, entry)

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
        try:
            with torch.no_grad(), _disable_current_modes():
                decision = entry.reader(module, inputs, local(output))
                if decision is None:
                    return
                more: dict[str, Any] = {}
                if self.choices:
                    more["chosen"] = decision.chosen and decision.chosen()
            layer = annotate.here.place.layer
            if layer < 0:
                # several routers of a layer (Tutel) have the number of the first one
                holder = None if entry.holder is None else entry.holder()
                layer = self.layer(entry if holder is None else self._first[holder])
            if layer in self._own_program:
                return
            self.on_router(type(module).__name__, decision.k)
            counts = decision.demand, decision.dropped
            self.on_routing(layer, *counts, entry.group(), **more)
        except Exception as error:
            # no error of the recording may reach the training
            self.on_failure(error)

    def layer(self, entry: ObservedRouter) -> int:
        """Return the layer number of a router, determined on first use.

        Then all routers of its model are numbered, in order of definition.  Models that
        have not been called are ignored: they would shift layer numbers.
        """
        module = entry.module()
        with self._lock:
            if entry.layer < 0 and module is not None:
                parents = layer_index.parents_of(modules_alive())
                path = layer_index.path_of(module, parents)
                root = path[0][0] if path else module
                parts = [p for p in root.modules() if p in self._routers]
                parts = [p for p in parts if self._routers[p].layer < 0]
                numbers = self._numbering.number(
                    [layer_index.position_of(part, parents) for part in parts]
                )
                for part, number in zip(parts, numbers, strict=True):
                    self._routers[part].layer = -1 if number is None else number
            if entry.layer < 0:
                entry.layer = self._numbering.next()
        return entry.layer

    def _reported(self, layer: int, *_: Any) -> None:
        """Note a layer whose routing the program reports."""
        self._own_program.add(layer)

    def undo(self) -> None:
        """Remove all hooks on routers."""
        if self._closed:
            return
        self._closed = True
        _installed.remove(self)
        self._undo.close()
        # copied modules have hooks without handles
        for module in modules_alive():
            for key, hook in list(module._forward_hooks.items()):
                if isinstance(hook, ObservedRouter) and hook.hooks is self:
                    del module._forward_hooks[key]
