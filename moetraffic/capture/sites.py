"""Number the call sites and process groups of one rank as they are met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch.distributed as dist

from moetraffic.trace.model import ROUTING, Group, Site

if TYPE_CHECKING:
    import torch


class Spot(NamedTuple):
    """A place in the program; merging counts its calls in a step."""

    operation: str
    group: int
    layer: int
    phase: str
    label: str
    direction: str
    peers: tuple[int, int]


class SiteTable:
    """Sites and groups in the order in which a rank came to them.

    Parameters
    ----------
    kinds
        Kind of a process group by its name in torch.distributed.
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.sites: list[Site] = []
        self.groups: list[Group] = []
        self._kinds = kinds
        self._group_numbers: dict[str, int] = {}
        self._calls: list[int] = []  # collectives so far, by group
        self._numbers: dict[tuple[object, ...], int] = {}

    def group(self, group: dist.ProcessGroup) -> int:
        """Number of a process group."""
        name = group.group_name
        number = self._group_numbers.get(name)
        if number is None:
            ranks = tuple(dist.get_process_group_ranks(group))
            everyone = ranks == tuple(range(dist.get_world_size()))
            kind = self._kinds.get(name, "world" if everyone else "other")
            number = self._group_numbers[name] = len(self.groups)
            self.groups.append(Group(kind=kind, ranks=ranks))
            self._calls.append(0)
        return number

    def at(
        self, spot: Spot, dtype: torch.dtype | None, row_bytes: int, experts: int
    ) -> tuple[int, int]:
        """Site of a call at a spot, and its count among its group's collectives.

        The count is -1 for what the group does not do together: routing, sends and
        receives.
        """
        key = (spot, dtype, row_bytes, experts)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.sites)
            self.sites.append(
                Site(
                    group=spot.group,
                    operation=spot.operation,
                    phase=spot.phase,
                    layer=spot.layer,
                    direction=spot.direction,
                    dtype="" if dtype is None else str(dtype).removeprefix("torch."),
                    row_bytes=row_bytes,
                    label=spot.label,
                    peers=spot.peers,
                    experts=experts,
                )
            )
        if spot.operation == ROUTING or spot.peers != (-1, -1):
            return number, -1
        count = self._calls[spot.group]
        self._calls[spot.group] = count + 1
        return number, count
