"""Hook exchanges outside torch.distributed: DeepEP, HybridEP, symmetric memory.

They are recognized by name: the methods of ``deep_ep.Buffer`` and
``HybridEPBuffer`` are wrapped once that module is imported, operators of the dispatcher
(``deepep::dispatch``, ``hybridep::dispatch``, ``minimal_async_ep::dispatch``,
``symm_mem::all_to_all_vdev*``) get an additional kernel in front of their own.  Counts
are passed on as device tensors, without synchronization.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from moetraffic.capture import annotate
from moetraffic.capture.annotate import CallContext, RoutingSink
from moetraffic.errors import CaptureError

from . import graph_operator, router_readers

LABEL = "bypass"
KEY = "BackendSelect"


@dataclass(frozen=True, kw_only=True, eq=False)
class DirectExchange:
    """Record of an expert-parallel exchange that bypasses torch.distributed."""

    operation: str  # "deep_ep.Buffer.dispatch", "symm_mem::all_to_all_vdev" ...
    group: Any  # its process group, a group's name, or None
    demand: Tensor | None = None  # [E] int64 token copies to each expert
    sent: Tensor | None = None  # [W] rows to each rank; DeepEP: one per token and rank
    received: Sequence[int] | Tensor | None = None  # rows by local expert
    row_bytes: int = 0  # of a row of the input tensor; 0: unknown


ExchangeSink = Callable[[DirectExchange], Any]
Reading = Callable[[str, Mapping[str, Any], Any], "DirectExchange | None"]


def watch_bypasses(
    on_exchange: ExchangeSink | None = None,
    *,
    on_routing: RoutingSink = annotate.routing,
    on_failure: Callable[[str, Exception], Any] | None = None,
) -> Callable[[], None]:
    """Install hooks that report expert-parallel exchanges outside torch.distributed.

    Parameters
    ----------
    on_exchange
        Called with each :class:`DirectExchange`.
    on_routing
        Called with the demand of a dispatch in a layer without a reporting router; not
        called for layer -1, where the layer is unknown.
    on_failure
        Called with the operation's name and the error if a call cannot be read; such
        errors do not reach the program.

    Returns
    -------
    callable
        Function that removes all hooks.
    """
    return _Watch(on_exchange, on_routing, on_failure).undo


# ---- readers of calls --------------------------------------------------------------


def _layout(name: str, given: Mapping[str, Any], result: Any) -> DirectExchange:
    """Read the tokens per rank and expert from ``Buffer.get_dispatch_layout``."""
    return DirectExchange(
        operation=name,
        group=getattr(given.get("self"), "group", None),
        demand=result[2].to(torch.int64),
        sent=result[0],
    )


def _dispatch(name: str, given: Mapping[str, Any], result: Any) -> DirectExchange:
    """Read the rows per rank of ``Buffer.dispatch`` from its arguments and result."""
    x = given["x"][0] if isinstance(given["x"], tuple) else given["x"]
    return DirectExchange(
        operation=name,
        group=getattr(given.get("self"), "group", None),
        sent=given.get("num_tokens_per_rank"),
        received=result[3] if isinstance(result, tuple) and len(result) > 3 else None,
        row_bytes=_row_bytes(x),
    )


def _low_latency(name: str, given: Mapping[str, Any], result: Any) -> DirectExchange:
    """Read the expert demand of ``Buffer.low_latency_dispatch`` from ``topk_idx``."""
    return DirectExchange(
        operation=name,
        group=getattr(given.get("self"), "group", None),
        demand=router_readers.chosen(given["topk_idx"], int(given["num_experts"])),
        received=result[1] if len(result) > 1 else None,
        row_bytes=_row_bytes(given["x"]),
    )


def _combine(name: str, given: Mapping[str, Any], _result: Any) -> DirectExchange:
    return DirectExchange(
        operation=name,
        group=getattr(given.get("self"), "group", None),
        row_bytes=_row_bytes(given["x"]),
    )


def _hybrid(name: str, given: Mapping[str, Any], _result: Any) -> DirectExchange | None:
    """Read the demand of ``HybridEPBuffer.dispatch*`` from ids or a routing map."""
    hidden = given.get("hidden")
    ids, marks = given.get("topk_idx"), given.get("routing_map")
    experts = given.get("num_of_experts")
    demand = None
    if isinstance(marks, Tensor):
        demand = router_readers.marked(marks)
    elif isinstance(ids, Tensor) and isinstance(experts, int):
        demand = router_readers.chosen(ids, experts)
    return DirectExchange(
        operation=name,
        group=getattr(given.get("self"), "group", None),
        demand=demand,
        row_bytes=_row_bytes(hidden) if isinstance(hidden, Tensor) else 0,
    )


def _ids_operator(name: str, given: Mapping[str, Any], _result: Any) -> DirectExchange:
    """Read the expert demand of torchtitan's ``{deepep,hybridep}::dispatch``."""
    return DirectExchange(
        operation=name,
        group=given.get("group_name"),
        demand=router_readers.chosen(given["topk_idx"], int(given["num_experts"])),
        row_bytes=_row_bytes(given["x"]),
    )


def _counted_operator(
    name: str, given: Mapping[str, Any], _result: Any
) -> DirectExchange:
    """Read the expert demand passed to torchtitan's ``minimal_async_ep::dispatch``."""
    return DirectExchange(
        operation=name,
        group=None,
        demand=given["num_local_tokens_per_expert_E"].to(torch.int64),
        row_bytes=_row_bytes(given["dispatch_input"]),
    )


def _vdev(name: str, given: Mapping[str, Any], _result: Any) -> DirectExchange:
    """Read splits of ``all_to_all_vdev`` (``[W]``) or ``all_to_all_vdev_2d`` (``[E]``).

    The variant ``_offset`` has ``[2, E]``, whose first row holds the splits; in older
    releases ``in_out_splits`` holds all.
    """
    splits = given.get("in_splits", given.get("in_splits_offsets"))
    if splits is None:
        splits = given["in_out_splits"]
    splits = splits[0] if splits.dim() == 2 else splits
    by_expert = "_2d" in name and not name.endswith("_offset")
    return DirectExchange(
        operation=name,
        group=given.get("group_name"),
        # the splits of "_offset" belong to the combine, and are not this rank's demand
        demand=splits.to(torch.int64) if by_expert else None,
        sent=None if by_expert else splits,
        row_bytes=_row_bytes(given["input"]),
    )


METHODS: dict[str, Reading] = {
    "Buffer.get_dispatch_layout": _layout,
    "Buffer.dispatch": _dispatch,
    "Buffer.low_latency_dispatch": _low_latency,
    "Buffer.combine": _combine,
    "Buffer.low_latency_combine": _combine,
    "HybridEPBuffer.dispatch": _hybrid,
    "HybridEPBuffer.dispatch_with_permute": _hybrid,
}
"""Readers of the methods of module ``deep_ep``, by name."""

OPERATORS: dict[str, Reading] = {
    "deepep::dispatch": _ids_operator,
    "hybridep::dispatch": _ids_operator,
    "minimal_async_ep::dispatch": _counted_operator,
    "symm_mem::all_to_all_vdev": _vdev,
    "symm_mem::all_to_all_vdev_2d": _vdev,
    "symm_mem::all_to_all_vdev_2d_offset": _vdev,
}
"""Readers of dispatcher operators, by operator name."""

_installed: list[_Watch] = []


class _Watch:
    """The hooks installed by one call of :func:`watch_bypasses`."""

    def __init__(
        self,
        on_exchange: ExchangeSink | None,
        on_routing: RoutingSink,
        on_failure: Callable[[str, Exception], Any] | None,
    ) -> None:
        if _installed:
            raise CaptureError(
                "exchanges that bypass torch.distributed are watched once in a "
                "process, but are already: end the other watch first"
            )
        self._on_exchange, self._on_routing = on_exchange, on_routing
        self._on_failure = on_failure
        self._undo: list[Callable[[], Any]] = []
        self._operators: set[str] = set()
        self._routed: set[int] = set()  # layers whose router reports its demand
        self._own = False
        _installed.append(self)
        self._undo.append(annotate.subscribe(self._told))
        if "deep_ep" in sys.modules:
            self._wrap_module(sys.modules["deep_ep"])
        else:
            finder = _Finder(self._wrap_module)
            sys.meta_path.insert(0, finder)
            self._undo.append(functools.partial(_forget, finder))
        registration = nn.modules.module.register_module_forward_pre_hook
        self._find_operators()
        # frameworks define their operators on first import
        handle = registration(self._first_call)
        self._undo.append(handle.remove)
        self._first = handle

    def _first_call(self, _module: nn.Module, _inputs: Any) -> None:
        self._first.remove()
        self._find_operators()

    def _find_operators(self) -> None:
        for name in OPERATORS:
            if name in self._operators:
                continue
            namespace, operator = name.split("::")
            with contextlib.suppress(RuntimeError, AttributeError):
                packet = getattr(getattr(torch.ops, namespace), operator)
                self._front(name, packet.default)

    def _front(self, name: str, overload: Any) -> None:
        """Install a kernel that reads an operator's calls and forwards them."""
        namespace, operator = name.split("::")
        library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
        after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
        names = [argument.name for argument in overload._schema.arguments]

        def kernel(keyset: Any, *args: Any, **named: Any) -> Any:
            result = overload.redispatch(keyset & after, *args, **named)
            self._read(name, dict(zip(names, args, strict=False)) | named, result)
            return result

        library.impl(operator, kernel, KEY, with_keyset=True)  # type: ignore[no-untyped-call]
        self._operators.add(name)
        self._undo.append(library._destroy)

    def _wrap_module(self, module: ModuleType) -> None:
        for name in METHODS:
            holder, method = name.split(".")
            kind = getattr(module, holder, None)
            real = None if kind is None else kind.__dict__.get(method)
            if inspect.isfunction(real):
                setattr(kind, method, self._wrapped(f"deep_ep.{name}", name, real))
                self._undo.append(functools.partial(setattr, kind, method, real))

    def _wrapped(self, name: str, key: str, real: Callable[..., Any]) -> Any:
        signature = inspect.signature(real)

        @functools.wraps(real)
        def method(*args: Any, **named: Any) -> Any:
            result = real(*args, **named)
            try:
                given = signature.bind(*args, **named).arguments
            except TypeError as error:
                self._failed(name, error)
                return result
            self._read(name, given, result, METHODS[key])
            return result

        return method

    def _read(
        self,
        name: str,
        given: Mapping[str, Any],
        result: Any,
        reading: Reading | None = None,
    ) -> None:
        if graph_operator.has_no_values(tuple(given.values())):
            return
        try:
            with torch.no_grad(), graph_operator.no_modes():
                told = (reading or OPERATORS[name])(name, given, result)
            if told is None:
                return
            if self._on_exchange is not None:
                self._on_exchange(told)
            self._route(told)
        except Exception as error:
            # no error of the recording may reach the training
            self._failed(name, error)

    def _route(self, told: DirectExchange) -> None:
        here = annotate.place()
        if told.demand is None or here.layer < 0 or here.layer in self._routed:
            return
        group = told.group
        if isinstance(group, str):
            resolve: Any = torch._C._distributed_c10d._resolve_process_group
            group = resolve(group)
        before = annotate.set_context(CallContext(here.layer, "", LABEL))
        self._own = True
        try:
            self._on_routing(here.layer, told.demand, None, group)
        finally:
            self._own = False
            annotate.set_context(before)

    def _told(self, layer: int, _demand: Any, _dropped: Any, _group: Any) -> None:
        if not self._own:
            self._routed.add(layer)

    def _failed(self, name: str, error: Exception) -> None:
        if self._on_failure is not None:
            self._on_failure(name, error)

    def undo(self) -> None:
        """Remove all hooks on direct exchanges."""
        if self in _installed:
            _installed.remove(self)
            for undo in reversed(self._undo):
                undo()
            self._undo.clear()


class _Finder(importlib.abc.MetaPathFinder):
    """Import finder that calls a function once ``deep_ep`` is imported."""

    def __init__(self, imported: Callable[[ModuleType], None]) -> None:
        self._imported, self._busy = imported, False

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the spec of ``deep_ep`` and wrap its loader."""
        if name != "deep_ep" or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        if spec is None or spec.loader is None:
            return spec
        run, imported = spec.loader.exec_module, self._imported

        def exec_module(module: ModuleType) -> None:
            run(module)
            imported(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _forget(finder: _Finder) -> None:
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)


def _row_bytes(x: Tensor) -> int:
    row = x.element_size()
    for length in x.shape[1:]:
        row *= length
    return row
