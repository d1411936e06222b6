"""Tables and arrays hold what the trace does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.data import path
from moetraffic.errors import TraceError
from moetraffic.interop import import_files
from moetraffic.interop.write import ExportOptions, export_trace
from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace

GOLDEN = path("golden.h5")
SOME = range(4, 6)


@pytest.mark.parametrize("name", ["golden.h5", "golden-linked.h5"])
def test_csv_comes_back_with_every_call(tmp_path: Path, name: str) -> None:
    with Trace.open(path(name)) as trace:
        files = [tmp_path / "sent.csv", tmp_path / "wanted.csv"]
        for file, of in zip(files, ("wire", "demand"), strict=True):
            export_trace(
                trace, file, "csv", options=ExportOptions(iterations=SOME, of=of)
            )
        _, merged = import_files(files)
        assert merged.contradictions == ()
        there, back = trace, merged.trace
        when = back.steps.iteration
        assert back.steps.source.tolist() == there.steps.sources(when).tolist()
        for kind, read in ((ALL_TO_ALL, Trace.wire), (ROUTING, Trace.demand)):
            mine = there.find(operation=kind, iterations=SOME)
            theirs = back.find(operation=kind)
            assert len(mine) == len(theirs)
            assert _sorted(there, mine, read) == _sorted(back, theirs, read)
        routed = back.find(operation=ROUTING)
        dropped = there.dropped(there.find(operation=ROUTING, iterations=SOME))
        assert back.dropped(routed).sum() == dropped.sum() > 0


def _sorted(trace: Trace, found: Any, read: Any) -> list[Any]:
    sites = [trace.sites[s] for s in trace.occurrences.site[found]]
    rows = read(trace, found).tolist()
    when = trace.occurrences.iteration[found].tolist()
    told = [
        (w, s.layer, s.phase, s.direction, s.slot, s.label, s.row_bytes, s.source, r)
        for w, s, r in zip(when, sites, rows, strict=True)
    ]
    return sorted(told)


def test_parquet_has_the_lines_of_csv(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    with Trace.open(GOLDEN) as trace:
        for of in ("wire", "demand"):
            options = ExportOptions(iterations=SOME, of=of)
            export_trace(trace, tmp_path / f"{of}.csv", "csv", options=options)
            export_trace(trace, tmp_path / f"{of}.parquet", "parquet", options=options)
            one = pandas.read_csv(tmp_path / f"{of}.csv", keep_default_na=False)
            other = pandas.read_parquet(tmp_path / f"{of}.parquet")
            assert list(one.columns) == list(other.columns)
            for name in one:
                assert one[name].tolist() == other[name].tolist()
        schema = parquet.read_schema(tmp_path / "wire.parquet")
        assert schema.metadata[b"moetraffic.router"] == b"topk"
        assert schema.field("bytes").type == "int64"


def test_arrays_need_no_pickle_and_say_what_their_rows_are(tmp_path: Path) -> None:
    with Trace.open(GOLDEN) as trace:
        options = ExportOptions(iterations=SOME)
        done = export_trace(trace, tmp_path / "a.npz", "npz", options=options)
        with np.load(done.files[0], allow_pickle=False) as read:
            wire = read["wire_2"]
            chosen = (
                (read["wire_2_phase"] == "combine")
                & (read["wire_2_layer"] == 3)
                & (read["wire_2_iteration"] == 5)
                & (read["wire_2_micro_batch"] == 1)
            )
            (matrix,) = wire[chosen]
            want = trace.matrix(5, 3, "combine", micro_batch=1, of="wire")
            assert (matrix == want.values).all()
            found = trace.find(operation=ALL_TO_ALL, iterations=SOME)
            assert wire.sum() == trace.wire(found).sum()
            issue, _, end = trace.times(found)
            assert (read["wire_2_issue_ns"] == issue).all()
            assert (read["wire_2_end_ns"] == end).all()
            routed = trace.find(operation=ROUTING, iterations=SOME)
            assert read["demand_2x4"].dtype == np.int32
            assert (read["demand_2x4"] == trace.demand(routed)).all()
            assert read["demand_2x4_ranks"].tolist() == [[0, 1]] * len(routed)
            np.testing.assert_array_equal(read["step_loss"], trace.steps.loss)


def test_a_trace_without_routing_has_no_table_of_demand(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("iteration,layer,phase,source,destination,bytes\n0,0,,0,1,5\n")
    _, merged = import_files([table])
    wanted = ExportOptions(of="demand")
    with pytest.raises(TraceError, match="none that fits was seen"):
        export_trace(merged.trace, tmp_path / "d.csv", "csv", options=wanted)
    with pytest.raises(TraceError, match="shows layers of no experts"):
        export_trace(merged.trace, tmp_path / "l.npy", "eplb")
    done = export_trace(merged.trace, tmp_path / "a.npz", "npz")
    with np.load(done.files[0], allow_pickle=False) as read:
        assert read["wire_2"].tolist() == [[[0, 5], [0, 0]]]
