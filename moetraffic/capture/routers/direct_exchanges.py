"""Hook exchanges outside torch.distributed: DeepEP, HybridEP, symmetric memory.

They are recognized by name: the methods of ``deep_ep.Buffer`` and
``HybridEPBuffer`` are wrapped once that module is imported, operators of the dispatcher
(``deepep::dispatch``, ``hybridep::dispatch``, ``minimal_async_ep::dispatch``,
``symm_mem::all_to_all_vdev_2d``) get an additional kernel in front of their own.  The
expert demand of a call is reported if the layer is known and no router reports it; it
is passed on as a device tensor, without synchronization.

References
----------
deepseek-ai/DeepEP, ``deep_ep/buffer.py`` and ``deep_ep/hybrid_ep_buffer.py``;
torchtitan 0.3, ``distributed/deepep/*.py``, ``distributed/minimal_async_ep/api.py``;
torch 2.13, ``torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.cpp``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from moetraffic.capture import annotate
from moetraffic.capture.annotate import CallContext

from . import router_readers
from .observed_router import has_no_values

LABEL = "bypass"
KEY = "BackendSelect"
Reader = Callable[[Mapping[str, Any], Any], "Tensor | None"]

# ---- readers of calls: named arguments and result to demand [E] int64 --------------


def _layout(_given: Mapping[str, Any], result: Any) -> Any:
    return result[2].to(torch.int64)


def _ids(given: Mapping[str, Any], _result: Any) -> Tensor:
    return router_readers.chosen(given["topk_idx"], int(given["num_experts"]))


def _ids_or_map(given: Mapping[str, Any], _result: Any) -> Tensor | None:
    ids, experts = given.get("topk_idx"), given.get("num_of_experts")
    if isinstance(given.get("routing_map"), Tensor):
        return router_readers.marked(given["routing_map"])
    if isinstance(ids, Tensor) and isinstance(experts, int):
        return router_readers.chosen(ids, experts)
    return None


def _counts(given: Mapping[str, Any], _result: Any) -> Any:
    return given["num_local_tokens_per_expert_E"].to(torch.int64)


def _splits(given: Mapping[str, Any], _result: Any) -> Any:
    """Read splits ``[E]``, in older releases the first row of ``in_out_splits``."""
    splits = given["in_splits"] if "in_splits" in given else given["in_out_splits"]
    return (splits[0] if splits.dim() == 2 else splits).to(torch.int64)


METHODS: dict[str, Reader] = {
    "Buffer.get_dispatch_layout": _layout,
    "Buffer.low_latency_dispatch": _ids,
    "HybridEPBuffer.dispatch": _ids_or_map,
    "HybridEPBuffer.dispatch_with_permute": _ids_or_map,
}
"""Readers of the methods of module ``deep_ep``, by name."""

OPERATORS: dict[str, Reader] = {
    "deepep::dispatch": _ids,
    "hybridep::dispatch": _ids,
    "minimal_async_ep::dispatch": _counts,
    "symm_mem::all_to_all_vdev_2d": _splits,
}
"""Readers of dispatcher operators, by operator name."""


class DirectExchangeHooks:
    """Hooks that report the demand of exchanges outside torch.distributed.

    The demand goes to :func:`moetraffic.capture.annotate.routing`.  If a call cannot be
    read, ``on_failure`` is called with the operation's name and the error, which does
    not reach the program.
    """

    def __init__(self, on_failure: Callable[[str, Exception], Any]) -> None:
        self._on_failure = on_failure
        self._installed = contextlib.ExitStack()
        self._operators: set[str] = set()
        self._routed: set[int] = set()  # layers whose router reports its demand
        self._reporting = False
        self._installed.callback(annotate.subscribe(self._reported))
        if "deep_ep" in sys.modules:
            self._wrap_methods(sys.modules["deep_ep"])
        else:
            finder = _Finder(self._wrap_methods)
            sys.meta_path.insert(0, finder)
            self._installed.callback(finder.remove)
        self._wrap_operators()
        # frameworks define their operators on first import
        registration = nn.modules.module.register_module_forward_pre_hook
        self._first = registration(self._first_call)
        self._installed.callback(self._first.remove)

    def undo(self) -> None:
        """Remove all hooks on direct exchanges."""
        self._installed.close()

    def _first_call(self, _module: nn.Module, _inputs: Any) -> None:
        self._first.remove()
        self._wrap_operators()

    def _wrap_operators(self) -> None:
        for name in OPERATORS.keys() - self._operators:
            namespace, operator = name.split("::")
            with contextlib.suppress(RuntimeError, AttributeError):
                packet = getattr(getattr(torch.ops, namespace), operator)
                self._wrap_operator(name, packet.default)

    def _wrap_operator(self, name: str, overload: Any) -> None:
        """Install a kernel that reads an operator's calls and forwards them."""
        namespace, operator = name.split("::")
        library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
        after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
        names = [argument.name for argument in overload._schema.arguments]

        def kernel(keyset: Any, *args: Any, **named: Any) -> Any:
            result = overload.redispatch(keyset & after, *args, **named)
            given = dict(zip(names, args, strict=False)) | named
            self._read(name, OPERATORS[name], given, result)
            return result

        library.impl(operator, kernel, KEY, with_keyset=True)  # type: ignore[no-untyped-call]
        self._operators.add(name)
        self._installed.callback(library._destroy)

    def _wrap_methods(self, module: ModuleType) -> None:
        for name in METHODS:
            holder, method = name.split(".")
            kind = getattr(module, holder, None)
            real = None if kind is None else kind.__dict__.get(method)
            if inspect.isfunction(real):
                setattr(kind, method, self._wrapped(name, real))
                self._installed.callback(setattr, kind, method, real)

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        @functools.wraps(real)
        def method(*args: Any, **named: Any) -> Any:
            result = real(*args, **named)
            try:
                given = signature.bind(*args, **named).arguments
            except TypeError as error:
                self._on_failure(f"deep_ep.{name}", error)
            else:
                self._read(f"deep_ep.{name}", METHODS[name], given, result)
            return result

        return method

    def _read(
        self,
        name: str,
        reader: Reader,
        given: Mapping[str, Any],
        result: Any,
    ) -> None:
        """Report the demand of a call if the layer is known and its router does not."""
        before = annotate.place()
        if before.layer < 0 or before.layer in self._routed:
            return
        if has_no_values(tuple(given.values())):
            return
        try:
            with torch.no_grad(), _disable_current_modes():
                demand = reader(given, result)
            if demand is None:
                return
            group = getattr(given.get("self"), "group", given.get("group_name"))
            if isinstance(group, str):
                resolve: Any = torch._C._distributed_c10d._resolve_process_group
                group = resolve(group)
            annotate.set_context(CallContext(before.layer, "", LABEL, linked=True))
            self._reporting = True
            annotate.routing(before.layer, demand, None, group)
        except Exception as error:
            # no error of the recording may reach the training
            self._on_failure(name, error)
        finally:
            self._reporting = False
            annotate.set_context(before)

    def _reported(self, layer: int, _demand: Any, _dropped: Any, _group: Any) -> None:
        if not self._reporting:
            self._routed.add(layer)


class _Finder(importlib.abc.MetaPathFinder):
    """Import finder that calls a function once ``deep_ep`` is imported."""

    def __init__(self, imported: Callable[[ModuleType], None]) -> None:
        self._imported = imported

    def remove(self) -> None:
        """Remove this finder from the import path."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the spec of ``deep_ep`` and wrap its loader."""
        if name != "deep_ep":
            return None
        self.remove()  # the search below asks the other finders
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run, imported = spec.loader.exec_module, self._imported

        def exec_module(module: ModuleType) -> None:
            run(module)
            imported(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
