"""Forward hook of an observed router.

The hook is an object, so that a hooked model can be copied and pickled: a copy shares
the hook, and a pickle contains a no-op hook.

In a module that torch compiles, a router's hook becomes one operator of the graph,
``moetraffic::routed``, which passes the router's output to the hook when the graph
runs.  It declares that it mutates a tensor, so that dead-code elimination keeps it.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

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


class ObservedRouter:
    """Forward hook of one router, which reports the router's output."""

    def __init__(self, hooks: RouterHooks, reader: Reader, module: nn.Module) -> None:
        self.hooks, self.reader = hooks, reader
        self.module = ref(module)
        self.holder: ReferenceType[nn.Module] | None = None  # its MoE layer
        self.layer = -1
        self._group: ReferenceType[dist.ProcessGroup] | None = None
        self.key = next(_numbers)
        _entries[self.key] = self

    def __deepcopy__(self, _memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:
        return _NoHooks, ()

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
        holder = self.holder and self.holder()
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
