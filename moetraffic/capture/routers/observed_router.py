"""Forward hooks of an observed router and of its MoE layer.

The hooks are objects, so that a hooked model can be copied and pickled: a copy shares
the hooks, and a pickle contains no-op hooks.

In a module that torch compiles, a router's hook becomes one operator of the graph,
``moetraffic::routed``, which passes the router's output to the hook when the graph
runs.  It declares that it mutates a tensor, so that dead-code elimination keeps it.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from moetraffic.capture import annotate
from moetraffic.capture.annotate import NO_CONTEXT, CallContext

if TYPE_CHECKING:
    import torch.distributed as dist

    from .router_hooks import RouterHooks
    from .router_readers import Reader

GROUPS = (
    *("ep_group", "group", "moe_group", "expert_parallel_group"),
    *("ep_mesh", "args.expert_parallel_group"),
    *("token_dispatcher.ep_mesh", "routed_experts.token_dispatcher.ep_mesh"),
)
"""Attributes of a router or its layer with the expert-parallel group or mesh."""


class _NoHooks:
    def __call__(self, *_: Any, **__: Any) -> None: ...

    enter = leave = __call__


class _SharedHooks:
    """Hooks that copies of a module share, and that pickles do not contain."""

    def __deepcopy__(self, _memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:
        return _NoHooks, ()


class ObservedRouter(_SharedHooks):
    """Forward hook of one router, which reports the router's output."""

    def __init__(self, hooks: RouterHooks, reader: Reader, module: nn.Module) -> None:
        self.hooks, self.reader = hooks, reader
        self.module = ref(module)
        self.block: LayerHooks | None = None  # of its MoE layer
        self.layer = -1
        self._group: ReferenceType[dist.ProcessGroup] | None = None
        self.key = next(_numbers)
        _entries[self.key] = self

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Report the router's output, or insert a reporting operator when tracing."""
        if not torch.compiler.is_compiling():
            self.hooks.routed(self, module, inputs, output)
            return
        single = not isinstance(output, (tuple, list))
        values = (output,) if single else output
        places = [n for n, value in enumerate(values) if isinstance(value, Tensor)]
        if places:
            tensors = [values[n].detach() for n in places]
            length = -1 if single else len(values)
            torch.ops.moetraffic.routed(tensors, places, length, self.key, _ledger)

    def group(self) -> dist.ProcessGroup | None:
        """Find the expert-parallel group in the framework's attributes, or None."""
        if self._group is not None and (group := self._group()) is not None:
            return group
        holder = None if self.block is None else self.block.module()
        values: list[Any] = [
            functools.reduce(
                lambda value, name: getattr(value, name, None), path.split("."), module
            )
            for module in (holder, self.module())
            for path in GROUPS
        ]
        # transformers shards a layer's experts over a mesh
        experts: Any = getattr(holder, "experts", None)
        if getattr(experts, "_is_expert_parallel", False) is True:
            values += [getattr(p, "device_mesh", None) for p in experts.parameters()]
        for value in values:
            if type(value).__name__ == "DeviceMesh":
                if value.ndim == 1:
                    value = value.get_group()
                elif "ep" in (value.mesh_dim_names or ()):
                    value = value.get_group("ep")
            if isinstance(value, torch.distributed.ProcessGroup):
                self._group = ref(value)
                return value
        return None


class LayerHooks(_SharedHooks):
    """Hooks of a MoE layer, which set the layer context while it runs."""

    def __init__(
        self, hooks: RouterHooks, router: ObservedRouter, module: nn.Module
    ) -> None:
        self.hooks, self.router = hooks, router
        self.module = ref(module)
        # of each thread: contexts that running calls have replaced, None where not
        self._before = defaultdict[int, list[CallContext | None]](list)
        self._place = CallContext(linked=True)
        self._holds: bool | None = None  # unknown before the first call

    def enter(self, module: nn.Module, _inputs: Any) -> None:
        """Set the layer context unless the program has set an annotation."""
        if torch.compiler.is_compiling():
            return
        before: CallContext | None = None
        try:
            here = annotate.place()
            if self._holds is None:
                # DeepSpeed's AutoEP replaces the MoE blocks of a built model
                router = self.router.module()
                self._holds = any(part is router for part in module.modules())
            if (here == NO_CONTEXT or here.linked) and self._holds:
                if self._place.layer < 0:
                    layer = self.hooks.layer(self.router)
                    self._place = CallContext(layer, linked=True)
                before = annotate.set_context(self._place)
        except Exception as error:
            # no error of the recording may reach the training
            self.hooks.on_failure(error)
        self._before[threading.get_ident()].append(before)

    def leave(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        """Restore the context before the MoE layer."""
        if torch.compiler.is_compiling():
            return
        contexts = self._before[threading.get_ident()]
        if contexts and (before := contexts.pop()) is not None:
            annotate.set_context(before)


# ---- in compiled modules -----------------------------------------------------------

_entries: WeakValueDictionary[int, ObservedRouter] = WeakValueDictionary()
_numbers = itertools.count(1)
_ledger = torch.zeros(1, dtype=torch.int8)
"""Tensor that the operator declares to mutate; a temporary one could be eliminated."""


@torch.library.custom_op(
    "moetraffic::routed",
    mutates_args=("ledger",),
    schema="(Tensor[] tensors, int[] places, int length, int key, "
    "Tensor(a!) ledger) -> ()",
)
def routed(
    tensors: list[Tensor], places: list[int], length: int, key: int, ledger: Tensor
) -> None:
    """Pass a router's output tensors to its hook when the graph runs."""
    entry = _entries.get(key)
    if entry is None:
        return
    output: Any = tensors[0]
    if length >= 0:
        values: list[Any] = [None] * length
        for position, tensor in zip(places, tensors, strict=True):
            values[position] = tensor
        output = tuple(values)
    entry.hooks.routed(entry, entry.module(), (), output)


@routed.register_fake
def _(*_: Any) -> None:
    return None


def has_no_values(output: Any) -> bool:
    """Whether an output has no readable values (fake tensor or CUDA graph capture)."""
    values = output if isinstance(output, (tuple, list)) else (output,)
    return any(
        isinstance(value, FakeTensor)
        or value.is_meta
        or (value.is_cuda and torch.cuda.is_current_stream_capturing())
        for value in values
        if isinstance(value, Tensor)
    )


def local(output: Any) -> Any:
    """Replace distributed tensors of an output by their local shards."""
    if isinstance(output, tuple):
        return tuple(local(value) for value in output)
    if isinstance(output, Tensor) and hasattr(output, "to_local"):
        return output.to_local()
    return output
