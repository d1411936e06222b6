"""Registered routers of two gloo ranks: exact counts, or none and one reason."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis import analyze
from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace import ROUTING, DroppedForm, Trace
from moetraffic.trace.model import Source
from moetraffic.watch.step_rows import step_rows

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CASES = (
    *("right", "too few experts", "first choices", "weights", "no such output"),
    *("experts unknown", "annotated", "all sent", "capacity", "accumulation", "once"),
    *("routed again", "to others", "padded", "demand of all", "demand", "drops"),
    *("both", "flat"),
)


@dataclass(frozen=True)
class Captured:
    """Traces of all cases, token copies ``[step, rank, expert]``, and messages."""

    folder: Path

    def trace(self, case: str) -> Trace:
        number = CASES.index(case) + 1
        return Trace.open(self.folder / f"run{f'-{number}' * (number > 1)}.h5")

    def routed(self, case: str, layer: int = 0) -> Int64:
        return self._log("routed", case, layer).swapaxes(0, 1)

    def sent(self, case: str, layer: int = 0) -> Int64:
        """Rows of the dispatches ``[step, rank]``."""
        return self._log("sent", case, layer).T

    def _log(self, kind: str, case: str, layer: int) -> Int64:
        logs = [json.loads((self.folder / f"{r}.json").read_text()) for r in (0, 1)]
        return np.array([log[kind][case][layer] for log in logs])

    @property
    def messages(self) -> str:
        return (self.folder / "messages").read_text()


@pytest.fixture(scope="module")
def captured(once: Callable[[str, Callable[[Path], None]], Path]) -> Captured:
    """What ``moetraffic run --k 1`` made of a program with top-2 routers."""

    def make(folder: Path) -> None:
        run = [*(sys.executable, "-m", "moetraffic", "run", "--k", "1")]
        run += ["-o", str(folder / "run.h5"), "--", sys.executable]
        ran = subprocess.run(
            [*run, HERE / "own_gates.py", folder],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        (folder / "messages").write_text(ran.stderr)

    return Captured(once("own_gates", make))


def routed_forward(trace: Trace) -> Int64:
    """Demand of the first routing of each step, ``[step, rank, expert]``."""
    return trace.demand(trace.find(operation=ROUTING, slot=0, kind=None))


def test_demand_is_exact_and_ids_show_k(captured: Captured) -> None:
    with captured.trace("right") as trace:
        assert np.array_equal(routed_forward(trace), captured.routed("right"))
        assert trace.meta.complete
        assert trace.meta.k == 2
        assert trace.meta.router == "MyGate"
        assert trace.meta.inferred == (
            "expert ids have 2 a token, but k=1 was given: 2 is used"
        )
        assert "token copies were routed" not in trace.meta.schedule


def test_ids_of_no_expert_leave_the_call_out(captured: Captured) -> None:
    with captured.trace("too few experts") as trace:
        assert not len(trace.find(operation=ROUTING, kind=None))
        assert not trace.meta.complete
        assert "says experts=4: give experts=8, or more" in trace.meta.missing
        sent = trace.wire(trace.find(phase="dispatch", kind=None)).sum(axis=2)
        rows = captured.routed("too few experts").sum(axis=2)
        assert np.array_equal(sent, 64 * rows)


def test_a_dispatch_of_more_rows_than_routed_copies_is_named(
    captured: Captured,
) -> None:
    with captured.trace("first choices") as trace:
        assert trace.meta.k == 1
        assert (
            "a dispatch of layer 0 sends 128 rows, but 64 token copies were routed"
            in trace.meta.contradiction
        )
        assert trace.meta.contradiction in analyze(trace, parts="evenness").notes


@pytest.mark.parametrize(
    ("case", "layers"),
    [("capacity", 1), ("accumulation", 2), ("once", 2), ("demand", 1)],
)
def test_fewer_rows_than_routed_copies_are_counted_in_each_layer(
    captured: Captured, case: str, layers: int
) -> None:
    with captured.trace(case) as trace:
        said = trace.meta.contradiction
        rows = int(captured.sent(case, 0).sum())
        copies = int(captured.routed(case, 0).sum())
        assert rows < copies
        several = f" ({layers} layers in all)" * (layers > 1)
        assert said == (
            f"the dispatches of layer 0 send {rows:,} rows, but {copies:,} token "
            f"copies were routed ({1 - rows / copies:.1%} fewer){several}: possible "
            "causes are a capacity (report drops by capture.routing(..., dropped=)), "
            "rows sent once for several experts, or a routing that is not that of the "
            "layer"
        )
        assert said in analyze(trace, parts="evenness").notes


@pytest.mark.parametrize(
    "case",
    [
        # nothing to say
        *("right", "all sent", "demand of all", "drops", "both", "flat"),
        *("routed again", "to others", "padded"),  # what was to be sent is unknown
    ],
)
def test_nothing_is_said_of_rows_that_are_as_many_or_not_comparable(
    captured: Captured, case: str
) -> None:
    with captured.trace(case) as trace:
        assert not trace.meta.contradiction


UNCOUNTED, UNKNOWN = DroppedForm.UNCOUNTED, DroppedForm.UNKNOWN


@pytest.mark.parametrize(
    ("case", "form"),
    [
        ("all sent", DroppedForm.NONE),  # of each token k ids were read, and sent
        ("flat", UNCOUNTED),  # ids may be what is left after a capacity
        *((case, UNKNOWN) for case in ("capacity", "accumulation", "once")),
        *((case, UNKNOWN) for case in ("to others", "padded", "demand")),
        ("demand of all", DroppedForm.NONE),
        ("drops", DroppedForm.STORED),
        ("both", DroppedForm.STORED),  # the report replaces what the hook read
    ],
)
def test_dropped_copies_are_known_only_where_they_were_reported_or_all_were_sent(
    captured: Captured, case: str, form: DroppedForm
) -> None:
    with captured.trace(case) as trace:
        routed = trace.find(operation=ROUTING, kind=None)
        used = {trace.sites[n] for n in trace.occurrences.site[routed].tolist()}
        assert {site.dropped for site in used} == {form}
        notes = analyze(trace, parts="evenness").notes
        stated = [note for note in notes if "copies dropped before" in note]
        assert stated == [
            "layers 0, 1: copies dropped before a router's output are unknown, the "
            "demand is what was sent"
        ] * (form == UNCOUNTED)
        steps = step_rows(trace, trace.iterations)
        shown = np.array([[r.dropped for r in s.layers.values()] for s in steps])
        if form == DroppedForm.NONE:
            assert not trace.dropped(routed).any()
            assert not shown.any()
        elif form == DroppedForm.STORED:
            kept = trace.demand(routed) - trace.dropped(routed)
            assert kept.max() == 12
            sent = sum(captured.sent(case, n).sum() for n in trace.layers)
            assert kept.sum() == sent
            assert shown.sum() == trace.dropped(routed).sum()
        else:
            with pytest.raises(TraceError, match=r"capture\.routing"):
                trace.dropped(routed)
            assert np.isnan(shown).all()


def test_count_exchanges_are_inferred_beside_annotated_calls(
    captured: Captured,
) -> None:
    with captured.trace("annotated") as trace:
        counts = trace.find(operation="all_to_all", layer=0, phase="", kind=None)
        every = [trace.sites[int(n)] for n in trace.occurrences.site[counts]]
        sites = [s for s in every if s.dtype == "int64"]
        assert [s.label for s in sites] == ["count_exchange"] * 4
        assert {s.source for s in sites} == {Source.INFERRED}
        assert "inferred from order and bytes" in trace.meta.schedule


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            "weights",
            "the function of capture.router for MyGate returned torch.float32 of "
            "shape [64, 2], not a tensor of integer ids or a bool mask: return the ids",
        ),
        (
            "no such output",
            "the function of capture.router for MyGate failed: tuple index out of "
            "range (the router returned a tuple of 3)",
        ),
        ("experts unknown", "capture.router(MyGate, ..., experts=E) is needed"),
    ],
)
def test_a_wrong_function_is_named_once_while_it_trains_and_once_in_the_trace(
    captured: Captured, case: str, reason: str
) -> None:
    with captured.trace(case) as trace:
        assert not len(trace.find(operation=ROUTING, kind=None))
        assert trace.meta.missing.startswith("ranks 0, 1 each left out 8 x routing (")
        assert reason in trace.meta.missing
    text = " ".join(captured.messages.split())
    assert text.count(reason) == 2
    assert "Error(" not in text
