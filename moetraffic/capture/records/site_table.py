"""Table of the call sites and process groups of one rank."""

from __future__ import annotations

from collections.abc import Sequence

from moetraffic.trace.model import ROUTING, Group, Site


class SiteTable:
    """Table of call sites and process groups, numbered in order of first use."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.groups: list[Group] = []
        self._calls: list[int] = []  # number of collectives by group
        self._numbers: dict[tuple[object, ...], int] = {}

    def meet(self, group: Group) -> int:
        """Add a process group; return its number."""
        self.groups.append(group)
        self._calls.append(0)
        return len(self.groups) - 1

    def at(
        self,
        operation: str,
        group: int,
        place: Sequence[object],
        direction: str,
        dtype: str,
        row_bytes: int,
        peers: tuple[int, int] = (-1, -1),
        experts: int = 0,
    ) -> tuple[int, int]:
        """Return the site number of a call and its index among its group's collectives.

        The index is -1 for calls that are not collective: routing, sends and receives.
        """
        key = (operation, group, *place, direction, dtype, row_bytes, peers, experts)
        number = self._numbers.get(key)
        if number is None:
            layer, phase, label = place
            number = self._numbers[key] = len(self.sites)
            self.sites.append(
                Site(
                    group=group,
                    operation=operation,
                    phase=str(phase),
                    layer=int(str(layer)),
                    direction=direction,
                    dtype=dtype,
                    row_bytes=row_bytes,
                    label=str(label),
                    peers=peers,
                    experts=experts,
                )
            )
        if operation == ROUTING or peers != (-1, -1):
            return number, -1
        count = self._calls[group]
        self._calls[group] = count + 1
        return number, count
