"""Placement of ranks on host slots: block, strided, explicit.

A placement is ``[W]`` int64: the slot of each rank, where host h has the slots h g to
(h + 1) g - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from moetraffic.errors import FabricError

from .topology import Hosts

Int64 = npt.NDArray[np.int64]


def block(ranks: int, hosts: Hosts) -> Int64:
    """Place consecutive ranks on the same host, as launchers number them.

    Examples
    --------
    >>> block(4, Hosts(number=2, ranks=2, nic_bytes_s=1e9)).tolist()
    [0, 1, 2, 3]
    """
    return explicit(range(ranks), hosts)


def strided(ranks: int, hosts: Hosts) -> Int64:
    """Place ranks round-robin: rank r on host ``r mod H``.

    Examples
    --------
    >>> strided(4, Hosts(number=2, ranks=2, nic_bytes_s=1e9)).tolist()
    [0, 2, 1, 3]
    """
    _refuse_more(ranks, hosts)
    rank = np.arange(ranks)
    return rank % hosts.number * hosts.ranks + rank // hosts.number


def explicit(slots: Sequence[int], hosts: Hosts) -> Int64:
    """Place each rank on a given slot.

    Raises
    ------
    FabricError
        If a slot does not exist or is given twice.

    Examples
    --------
    >>> explicit([3, 0], Hosts(number=2, ranks=2, nic_bytes_s=1e9)).tolist()
    [3, 0]
    """
    _refuse_more(len(slots), hosts)
    chosen = np.asarray(slots, np.int64)
    if (
        len(np.unique(chosen)) < len(chosen)
        or not ((chosen >= 0) & (chosen < hosts.slots)).all()
    ):
        raise FabricError(
            f"every rank has a slot of its own, of 0 to {hosts.slots - 1}, but the "
            f"slots are {list(slots)}: name each at most once"
        )
    return chosen


def _refuse_more(ranks: int, hosts: Hosts) -> None:
    if ranks > hosts.slots:
        raise FabricError(
            f"{hosts.number} hosts with {hosts.ranks} ranks each have room for "
            f"{hosts.slots}, but there are {ranks} ranks: give more hosts or larger "
            "ones"
        )


PLACEMENTS: dict[str, Callable[[int, Hosts], Int64]] = {
    "block": block,
    "strided": strided,
}
"""Placement functions by name; :func:`explicit` covers all other placements."""
