"""A page of the golden trace, beside itself at half the time and with other bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.data import path
from moetraffic.fabric import Network, load_fabric
from moetraffic.report.page import Content, content
from moetraffic.trace import UNKNOWN_TIME, Trace
from moetraffic.trace.model import CLOCK
from tests.timed import with_times

HOSTILE = "<script>window.hostile = 1</script>"


@pytest.fixture(scope="session")
def golden() -> Trace:
    return Trace.open(path("golden.h5"))


@pytest.fixture(scope="session")
def halved(golden: Trace) -> Trace:
    """The golden trace as if every call had taken half of its time."""
    trace = golden
    table = np.array(trace.table_of_site)[trace.occurrences.site]
    issue, start, end = {}, {}, {}
    for size in np.unique(trace.width).tolist():
        calls = np.flatnonzero(table == f"call_{size}")
        told = trace.times(calls, own_clock=True)
        known = (told[0] != UNKNOWN_TIME) & (told[2] != UNKNOWN_TIME)
        issue[size] = told[0]
        start[size] = np.full_like(told[1], UNKNOWN_TIME)
        half = told[0] + (told[2] - np.where(known, told[0], 0)) // 2
        end[size] = np.where(known, half, UNKNOWN_TIME)
    return with_times(
        trace,
        {"issue": issue, "start": start, "end": end},
        meta=replace(trace.meta, origin="replayed"),
        clocks=np.zeros(0, CLOCK),
    )


@pytest.fixture(scope="session")
def fabric(golden: Trace) -> Network:
    return load_fabric("leaf-spine", golden.meta.world, capacity="100Gbps")


@pytest.fixture(scope="session")
def shown(golden: Trace, halved: Trace, fabric: Network) -> Content:
    hostile = golden.replaced(meta=replace(golden.meta, model=HOSTILE))
    return content(
        hostile, fabric, replay=halved, other=golden, title=f"golden {HOSTILE}"
    )
