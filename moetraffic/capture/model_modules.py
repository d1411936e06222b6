"""Modules of a process: their names in their models, and pipeline stages."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import nn

from moetraffic.trace.merge.rank_record import CallingModule

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
WRAPPERS = frozenset(
    {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
)
"""Attributes of wrappers (DDP, torch.compile, FSDP), which are no part of a name."""


def modules_alive() -> list[nn.Module]:
    """List all live modules of this process."""
    # isinstance would resolve lazy proxies
    return [m for m in gc.get_objects() if issubclass(type(m), nn.Module)]


class ModelModules:
    """Descriptions of the modules that make all-to-alls."""

    def __init__(self) -> None:
        self._parents: WeakKeyDictionary[
            nn.Module, list[tuple[ReferenceType[nn.Module], str]]
        ] = WeakKeyDictionary()
        self._stages = dict[int, int]()  # by id of a pipeline stage's module
        self._models: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()

    def describe(self, module: nn.Module, around: Sequence[int]) -> CallingModule:
        """Describe a module, or the first one above it that is in a container.

        ``around`` are ids of the modules that run around it.
        """
        if module not in self._parents:
            self._scan()
        contained = False
        stage = self._stages.get(id(module), -1)
        order, names, seen = list[int](), list[str](), {id(module)}
        while above := self._above(module, seen):
            # one module may be a part of several layers
            module, name = max(above, key=lambda parent: id(parent[0]) in around)
            seen.add(id(module))
            stage = max(stage, self._stages.get(id(module), -1))
            if isinstance(module, CONTAINERS) and not contained:
                contained = True
                order.clear()
                names.clear()
            order.append(list(module.__dict__["_modules"]).index(name))
            if name not in WRAPPERS:
                names.append(name)
        return CallingModule(
            name=".".join(reversed(names)),
            model=self._models.setdefault(module, len(self._models)),
            order=tuple(reversed(order)),
            stage=stage,
        )

    def _above(self, module: nn.Module, seen: set[int]) -> list[tuple[nn.Module, str]]:
        """Return the parents of a module, but those that are its parts as well."""
        parents = [(parent(), name) for parent, name in self._parents.get(module, ())]
        return [(p, n) for p, n in parents if p is not None and id(p) not in seen]

    def _scan(self) -> None:
        self._parents = WeakKeyDictionary()
        for parent in modules_alive():
            self._parents.setdefault(parent, [])
            for name, child in parent.__dict__.get("_modules", {}).items():
                if child is not None:
                    self._parents.setdefault(child, []).append((ref(parent), name))
        self._stages = _pipeline_stages()


def _pipeline_stages() -> dict[int, int]:
    """Return the index of each stage of torch's pipelines, by ``id`` of its module."""
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    kind = getattr(stages, "_PipelineStageBase", None)
    if kind is None:
        return {}
    alive = [s for s in gc.get_objects() if issubclass(type(s), kind)]
    return {id(stage.submod): stage.stage_index for stage in alive}
