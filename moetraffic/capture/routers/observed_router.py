"""Forward hooks of an observed router and of its MoE layer.

The hooks are objects, so that a hooked model can be copied and pickled: a copy shares
the hooks, and a pickle contains no-op hooks.

In a module that torch compiles, a router's hook becomes one operator of the graph,
``moetraffic::routed``: it causes no graph break, and passes the router's output
to the hook when the graph runs.  The operator declares that it mutates a tensor, so
that dead-code elimination keeps it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import ReferenceType, WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from moetraffic.capture import annotate
from moetraffic.capture.annotate import NO_CONTEXT, CallContext

if TYPE_CHECKING:
    import torch.distributed as dist

    from .router_readers import Reader

GROUPS = (
    *("ep_group", "group", "moe_group", "expert_parallel_group"),
    *("ep_mesh", "args.expert_parallel_group"),
    *("token_dispatcher.ep_mesh", "routed_experts.token_dispatcher.ep_mesh"),
)
"""Attributes of a router or its layer with the expert-parallel group or mesh."""


class _NoHooks:
    """No-op replacement of pickled hooks."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    enter = leave = __call__


class _SharedHooks:
    """Hooks that copies of a module share, and that pickles do not contain."""

    def __deepcopy__(self, _memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:
        return _NoHooks, ()


class Observer(Protocol):
    """Object that the hooks report to: :class:`.router_hooks.RouterHooks`."""

    def routed(
        self,
        entry: ObservedRouter,
        module: nn.Module | None,
        inputs: Sequence[Any],
        output: Any,
    ) -> None:
        """Read the expert demand from a router's output and report it."""

    def layer(self, entry: ObservedRouter) -> int:
        """Return the layer number of a router."""

    def failed(self, error: Exception) -> None:
        """Report a router whose output could not be read."""


class ObservedRouter(_SharedHooks):
    """Forward hook of one router, which reports the router's output."""

    def __init__(self, hooks: Observer, reader: Reader, module: nn.Module) -> None:
        self.hooks, self.reader = hooks, reader
        self.module = ref(module)
        self.holder: Callable[[], nn.Module | None] = lambda: None
        self.layer = -1
        self._group: ReferenceType[Any] | None = None
        self.key = next(_numbers)
        _entries[self.key] = self

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Report the router's output, or insert a reporting operator when tracing."""
        if torch.compiler.is_compiling():
            emit(self.key, output)
        else:
            self.hooks.routed(self, module, inputs, output)

    def group(self) -> dist.ProcessGroup | None:
        """Find the expert-parallel group in the framework's attributes, or None."""
        known: Any = None if self._group is None else self._group()
        if known is None:
            known = _group_of(self.holder(), self.module())
            if known is not None:
                self._group = ref(known)
        return cast("dist.ProcessGroup | None", known)


class LayerHooks(_SharedHooks):
    """Hooks of a MoE layer, which set the layer context while it runs."""

    def __init__(self, hooks: Observer, router: ObservedRouter) -> None:
        self.hooks, self.router = hooks, router
        self._thread = threading.local()
        self._place = CallContext(linked=True)
        self._holds: bool | None = None  # unknown before the first call

    def enter(self, module: nn.Module, _inputs: Any) -> None:
        """Set the layer context unless the program has set an annotation."""
        if torch.compiler.is_compiling():
            return
        left = self._thread.__dict__.setdefault("left", [])
        try:
            here = annotate.place()
            if (here == NO_CONTEXT or here.linked) and self._is_in(module):
                if self._place.layer < 0:
                    layer = self.hooks.layer(self.router)
                    self._place = CallContext(layer, linked=True)
                left.append(annotate.set_context(self._place))
            else:
                left.append(None)
        except Exception as error:
            # no error of the recording may reach the training
            self.hooks.failed(error)

    def _is_in(self, holder: nn.Module) -> bool:
        """Whether the layer holds its router when it is called for the first time.

        DeepSpeed's AutoEP replaces the MoE blocks of a model that has been built.
        """
        if self._holds is None:
            router = self.router.module()
            self._holds = any(module is router for module in holder.modules())
        return self._holds

    def leave(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        """Restore the context before the MoE layer."""
        if torch.compiler.is_compiling():
            return
        left = self._thread.__dict__.get("left")
        if left:
            before = left.pop()
            if before is not None:
                annotate.set_context(before)


def _group_of(*modules: nn.Module | None) -> Any:
    for module in modules:
        for path in GROUPS if module is not None else ():
            found: Any = module
            for name in path.split("."):
                found = getattr(found, name, None)
            group = _process_group(found)
            if group is not None:
                return group
    for mesh in _expert_meshes(modules[0]):
        return _process_group(mesh)
    return None


def _process_group(found: Any) -> Any:
    if isinstance(found, torch.distributed.ProcessGroup):
        return found
    if type(found).__name__ != "DeviceMesh":
        return None
    if found.ndim == 1:
        return found.get_group()
    return found.get_group("ep") if "ep" in (found.mesh_dim_names or ()) else None


def _expert_meshes(holder: nn.Module | None) -> Iterator[Any]:
    """Yield the device meshes over which transformers shards a layer's experts."""
    experts: Any = getattr(holder, "experts", None)
    if getattr(experts, "_is_expert_parallel", False) is True:
        for parameter in experts.parameters():
            if hasattr(parameter, "device_mesh"):
                yield parameter.device_mesh


# ---- in compiled modules -----------------------------------------------------------

_entries: WeakValueDictionary[int, ObservedRouter] = WeakValueDictionary()
_numbers = itertools.count(1)
_ledger = torch.zeros(1, dtype=torch.int8)
"""Tensor that the operator declares to mutate; a temporary one could be eliminated."""


def emit(key: int, output: Any) -> None:
    """Insert the reporting operator into the traced graph."""
    values = output if isinstance(output, (tuple, list)) else (output,)
    at = [n for n, value in enumerate(values) if isinstance(value, Tensor)]
    if at:
        tensors = [values[n].detach() for n in at]
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
