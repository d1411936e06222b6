"""Determine the layer index of a router in its model.

A module has no reference to its parent, so all modules of the process are searched
once.  The layer is taken from an attribute of the router or of a module that contains
it (``layer_number``, which counts from 1 in Megatron, or ``layer_idx``), else from the
number in its path (3 of ``model.layers.3.mlp.gate``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import NamedTuple

from torch import nn

LAYER_ATTRIBUTES = {"layer_number": 1, "layer_idx": 0, "layer_id": 0, "layer_index": 0}
"""Attributes that hold a layer number, with the number of the first layer."""

STACKS = frozenset(
    {"layers", "layer", "blocks", "block", "h", "decoder_layers", "encoder_layers"}
)
"""Attribute names of the layer lists of models."""

ParentModules = Mapping[int, Sequence[tuple[nn.Module, str]]]
"""Parent modules and attribute names, by ``id`` of the child module."""


class Position(NamedTuple):
    """Layer number within a stack of layers (encoder and decoder are two stacks)."""

    stack: int  # id of the module that holds the layers, or of the root
    number: int
    length: int  # layers of the stack, 0 if unknown


def parents_of(modules: Iterable[nn.Module]) -> ParentModules:
    """Map the id of each module to its parent modules and attribute names."""
    parents = defaultdict(list)
    for module in modules:
        for name, child in module.__dict__.get("_modules", {}).items():
            parents[id(child)].append((module, name))
    return parents


def path_of(module: nn.Module, parents: ParentModules) -> list[tuple[nn.Module, str]]:
    """Return the parents and attribute names from the root down to a module."""
    path: list[tuple[nn.Module, str]] = []
    seen = {id(module)}
    while above := [p for p in parents.get(id(module), ()) if id(p[0]) not in seen]:
        path.append(above[0])
        module = above[0][0]
        seen.add(id(module))
    return path[::-1]


def position_of(module: nn.Module, parents: ParentModules) -> Position | None:
    """Find a router's layer position from attributes or its path, None if unknown."""
    path = path_of(module, parents)
    root = id(path[0][0]) if path else id(module)
    for holder in (module, *(parent for parent, _ in reversed(path))):
        for name, first in LAYER_ATTRIBUTES.items():
            number = getattr(holder, name, None)
            if type(number) is int and number >= first:
                return Position(root, number - first, 0)
    numbered = [
        (path[n - 1][1] in STACKS if n else False, parent, int(name))
        for n, (parent, name) in enumerate(path)
        if name.isdecimal()
    ]
    if not numbered:
        return None
    # the first list of layers, or else the first list
    _, stack, number = max(numbered, key=lambda part: part[0])
    return Position(id(stack), number, len(stack) if isinstance(stack, Sized) else 0)


class LayerNumbering:
    """Assignment of unique layer numbers to the routers of a process.

    If a model has several stacks (an encoder and a decoder) with overlapping numbers,
    the stacks are numbered consecutively.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}  # by stack
        self._taken: set[int] = set()
        self._end = 0

    def number(self, positions: Sequence[Position | None]) -> list[int | None]:
        """Assign layer numbers to routers from their positions, in definition order."""
        known = [position for position in positions if position is not None]
        for stack in dict.fromkeys(position.stack for position in known):
            members = [position for position in known if position.stack == stack]
            overlaps = any(member.number in self._taken for member in members)
            offset = self._offsets.setdefault(stack, self._end if overlaps else 0)
            self._taken.update(offset + member.number for member in members)
            ends = (max(member.length, member.number + 1) for member in members)
            self._end = max(self._end, offset + max(ends))
        return [p and self._offsets[p.stack] + p.number for p in positions]

    def next(self) -> int:
        """Return the first free layer number, for routers without a position."""
        layer = next(n for n in range(len(self._taken) + 1) if n not in self._taken)
        self._taken.add(layer)
        self._end = max(self._end, layer + 1)
        return layer
