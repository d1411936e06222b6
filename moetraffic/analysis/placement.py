"""Traffic of a captured run under another expert placement."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import LayoutError
from moetraffic.patterns import Layout
from moetraffic.patterns.placement import place as place_experts
from moetraffic.trace import Trace
from moetraffic.trace.what_if.loads import is_load, over_ranks
from moetraffic.trace.what_if.relocate import Relocation, relocate


def place(
    trace: Trace | str | Path,
    *,
    ep: int | None = None,
    ranks: int | None = None,
    placement: str = "contiguous",
    replicas: int = 0,
    every: int = 0,
    order: str = "",
) -> Trace:
    """Derive the traffic of a run under another EP degree, placement or replication.

    No training is repeated: the demand of tokens does not depend on the placement.

    Parameters
    ----------
    trace
        A run with data and expert parallelism whose demand is known, or a load of
        experts, which needs ``ep``.
    ep
        Expert-parallel ranks; None keeps those of the trace.
    ranks
        Number of ranks, a divisor of the trace's; shards of neighbors are joined.
    placement
        A name of :data:`moetraffic.patterns.placement.PLACEMENTS`.
    replicas
        Further replicas, assigned to the experts with the largest load per replica.
    every
        Place again after this many iterations, by the load of these; 0 places once, by
        the load of the whole trace.
    order
        Order of the parallel axes over ranks; "" is the default order.

    Returns
    -------
    Trace
        A virtual trace without times; its ``name`` is that of the given trace.

    Raises
    ------
    LayoutError
        If a number is out of range or the experts cannot be placed in this way.
    TraceError
        If the trace does not hold the routing of all ranks.
    """
    trace = Trace.open(trace)
    if is_load(trace):
        trace = over_ranks(trace, ranks if ep is None else ep, needed=True)
    world = trace.meta.world if ranks is None else ranks
    width = trace.meta.ep if ep is None else ep
    given = {"replicas": replicas, "every": every, "ranks": world, "ep": width}
    for name, value in given.items():
        least = int(name in ("ranks", "ep"))
        if not isinstance(value, int) or value < least:
            raise LayoutError(
                f"{name} is a number from {least} on, but is {value!r}: change --{name}"
            )
    if world % width:
        raise LayoutError(
            f"expert-parallel groups are of equal size, but {world} ranks do not "
            f"split into groups of {width}: give --ep a divisor of {world}"
        )
    layout = Layout(dp=world, ep=width, order=order or Layout().order)
    return relocate(
        trace,
        Relocation(
            ranks=world,
            groups=layout.groups("ep"),
            place=partial(_slots, placement, replicas),
            every=every,
            source=f"{Path(trace.name).name}: {placement} placement",
        ),
    )


def _slots(name: str, replicas: int, load: Float64, ranks: int) -> tuple[Int64, Int64]:
    """Place experts and replicas: the expert of each slot, and its rank."""
    most = len(load) * (ranks - 1)
    if replicas > most:
        raise LayoutError(
            f"a rank holds an expert at most once, but {replicas} replicas of "
            f"{len(load)} experts are more than {ranks} ranks can hold: lower "
            f"--replicas to {most} at most"
        )
    return place_experts(name, load, ranks, len(load) + replicas)
