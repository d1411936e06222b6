"""Determine the layer index of a router in its model.

A module has no reference to its parent, so all modules of the process are searched
once.  The layer is taken from an attribute of the router or of a module that contains
it (``layer_number``, which counts from 1 in Megatron, or ``layer_idx``), else from the
number in its path (3 of ``model.layers.3.mlp.gate``).
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import NamedTuple

from torch import nn

LAYER_ATTRIBUTES = {"layer_number": 1, "layer_idx": 0, "layer_id": 0, "layer_index": 0}
"""Attributes that hold a layer number, with the number of the first layer."""

STACKS = frozenset(
    {"layers", "layer", "blocks", "block", "h", "decoder_layers", "encoder_layers"}
)
"""Attribute names of the layer lists of models."""

LONGEST_PATH = 64

ParentModules = Mapping[int, Sequence[tuple[nn.Module, str]]]
"""Parent modules and attribute names, by ``id`` of the child module."""


class Position(NamedTuple):
    """Layer number within a stack of layers (encoder and decoder are two stacks)."""

    stack: int  # id of the module that holds the layers, or of the root
    number: int
    length: int  # layers of the stack, 0 if unknown


def modules_alive() -> list[nn.Module]:
    """List all live modules of this process."""
    # isinstance would resolve lazy proxies
    return [m for m in gc.get_objects() if issubclass(type(m), nn.Module)]


def holders(modules: Iterable[nn.Module]) -> ParentModules:
    """Map the id of each module to its parent modules and attribute names."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in modules:
        for name, child in module.__dict__.get("_modules", {}).items():
            if child is not None:
                found.setdefault(id(child), []).append((module, name))
    return found


def path_of(module: nn.Module, held: ParentModules) -> list[tuple[nn.Module, str]]:
    """Return the parents and attribute names from the root down to a module."""
    path: list[tuple[nn.Module, str]] = []
    at, seen = module, {id(module)}
    while len(path) < LONGEST_PATH:
        above = [(h, n) for h, n in held.get(id(at), ()) if id(h) not in seen]
        if not above:
            break
        path.append(above[0])
        at = above[0][0]
        seen.add(id(at))
    return path[::-1]


def position_of(module: nn.Module, held: ParentModules) -> Position | None:
    """Find a router's layer position from attributes or its path, None if unknown."""
    path = path_of(module, held)
    root = id(path[0][0]) if path else id(module)
    for around in (module, *(holder for holder, _ in reversed(path))):
        for name, first in LAYER_ATTRIBUTES.items():
            number = getattr(around, name, None)
            if type(number) is int and number >= first:
                return Position(root, number - first, 0)
    numbered = [
        (holder, path[i - 1][1] if i else "", int(name))
        for i, (holder, name) in enumerate(path)
        if name.isdecimal()
    ]
    numbered.sort(key=lambda part: part[1] not in STACKS)  # stacks first
    for holder, _, index in numbered[:1]:
        length = len(holder) if isinstance(holder, Sized) else 0
        return Position(id(holder), index, length)
    return None


class LayerNumbering:
    """Assignment of unique layer numbers to the routers of a process.

    If a model has several stacks (an encoder and a decoder) with overlapping numbers,
    the stacks are numbered consecutively.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}
        self._taken: dict[int, int] = {}  # layer -> stack; -1: by order of first call
        self._end = 0

    def number(self, positions: Sequence[Position | None]) -> list[int | None]:
        """Assign layer numbers to routers from their positions, in definition order."""
        stacks: dict[int, list[Position]] = {}
        for position in positions:
            if position is not None:
                stacks.setdefault(position.stack, []).append(position)
        for stack, members in stacks.items():
            if stack not in self._offsets:
                met = any(member.number in self._taken for member in members)
                self._offsets[stack] = self._end if met else 0
            offset = self._offsets[stack]
            for member in members:
                layer = offset + member.number
                self._taken[layer] = stack
                last = offset + max(member.length, member.number + 1)
                self._end = max(self._end, last)
        return [
            None
            if position is None
            else self._offsets[position.stack] + position.number
            for position in positions
        ]

    def next(self) -> int:
        """Return the first free layer number, for routers without a position."""
        layer = next(n for n in range(len(self._taken) + 1) if n not in self._taken)
        self._taken[layer] = -1
        self._end = max(self._end, layer + 1)
        return layer
