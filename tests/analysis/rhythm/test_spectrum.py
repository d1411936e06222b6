"""Spectrum: what comes again each iteration has its power at whole multiples of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.analysis.rhythm.spectrum import spectra
from moetraffic.data import path
from moetraffic.trace import Trace
from moetraffic.trace.model import CLOCK
from tests.timed import with_times

STEP_NS = 1_000_000


def regular(trace: Trace) -> Trace:
    """The trace with each call at the same place of every iteration."""
    begin: dict[int, np.ndarray] = {}
    table = np.array(trace.table_of_site)[trace.occurrences.site]
    for size in np.unique(trace.width).tolist():
        calls = trace.occurrences[table == f"call_{size}"]
        at = calls.iteration * STEP_NS
        at = at + calls.site * (STEP_NS // 2 // len(trace.sites))
        begin[size] = np.repeat(at[:, None], size, axis=1).astype(np.int64)
    start = np.repeat(trace.steps.iteration[:, None] * STEP_NS, trace.meta.world, 1)
    end = {size: at + 4_000 for size, at in begin.items()}
    return with_times(
        trace,
        {"issue": begin, "start": begin, "end": end},
        steps=replace(trace.steps, start=start, end=start + STEP_NS),
        clocks=np.zeros(0, CLOCK),
    )


def test_what_comes_again_each_iteration_has_its_power_at_multiples_of_it() -> None:
    with Trace.open(path("golden.h5")) as trace:
        every, reason = spectra(regular(trace))
    assert reason == ""
    found = [one for one in every if one.by == "phase"]
    assert {s.name for s in found} >= {"dispatch", "combine"}
    for one in found:
        assert one.share.sum() == pytest.approx(1.0)
        assert one.step_hz == pytest.approx(1000.0)
        multiple = one.frequency_hz / one.step_hz
        near = np.abs(multiple - np.rint(multiple)) < 0.25
        # a window of whole iterations leaks into the neighbors alone
        assert one.share[near].sum() > 0.97


def test_a_trace_without_times_says_why_it_has_no_spectrum() -> None:
    with Trace.open(path("golden.h5")) as trace:
        virtual = trace.replaced(meta=replace(trace.meta, virtual=True))
        assert spectra(virtual) == (
            (),
            "the trace is virtual: nothing was sent, so it has no times",
        )
