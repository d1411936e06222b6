"""What torch's own profiler and observer wrote says what the Recorder captured."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.errors import TraceError
from moetraffic.interop import ImportOptions, import_files
from moetraffic.interop.read import torch_profile
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Trace
from moetraffic.trace.merge.merging import Merged
from moetraffic.trace.model import Presence, Source

KINDS = {"profiler": "profile_rank*", "execution-trace": "et_rank*"}
WIDE = 40


def files(folder: Path, kind: str) -> list[Path]:
    found = sorted(folder.glob(KINDS[kind]))
    assert len(found) == 4
    return found


def load(path: Path) -> dict[str, Any]:
    packed = path.suffix == ".gz"
    raw = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    loaded: dict[str, Any] = json.loads(raw)
    return loaded


def calls(trace: Trace) -> dict[tuple[Any, ...], Any]:
    """The bytes of each call, by what names it in every trace of the run."""
    found = {}
    for number, site in enumerate(trace.sites):
        for one in np.flatnonzero(trace.occurrences.site == number):
            of = np.array([one])
            square = site.operation == ALL_TO_ALL
            values = trace.wire(of) if square else trace.volume(of)
            sequence = int(trace.occurrences.sequence[one])
            when = int(trace.occurrences.iteration[one])
            key = (trace.groups[site.group].ranks, site.operation, when, sequence)
            assert key not in found
            found[key] = (
                *(site.dtype, site.row_bytes, site.direction, site.peers),
                values[0].tolist(),
                trace.present(of)[0].tolist(),
            )
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_is_as_the_recorder_saw_it(profiled: Path, kind: str) -> None:
    found, merged = import_files(files(profiled, kind))
    assert found == kind
    assert (merged.contradictions, merged.missing) == ((), ())
    trace = merged.trace
    with Trace.open(profiled / "recorded.h5") as recorded:
        assert calls(trace) == calls(recorded)
        assert trace.steps.iteration.tolist() == recorded.steps.iteration.tolist()
        assert trace.groups == recorded.groups
        for rank in range(4):
            mine = trace.occurrences.sequence[trace.order(rank)]
            its = recorded.occurrences.sequence[recorded.order(rank)]
            assert mine.tolist() == its.tolist()
    meta = trace.meta
    assert (meta.origin, meta.world, meta.complete) == ("imported", 4, True)
    assert meta.source.count("rank") == 4


def test_a_forward_call_and_its_backward_are_linked(profiled: Path) -> None:
    first = files(profiled, "profiler")[:1]
    contents = torch_profile.read(first, ImportOptions())
    assert (set(contents.files), contents.world) == ({0}, 4)
    payload = [r for r in contents.rows if r.dtype == "float32" and len(r.sent) == 4]
    exchanges = [c for c in payload if c.link >= 0]
    assert len(exchanges) == 3 * 4
    for step in range(3):
        dispatch, combine, *back = exchanges[4 * step : 4 * step + 4]
        assert [c.direction for c in back] == ["backward"] * 2
        assert [c.link for c in back] == [combine.link, dispatch.link]
        assert list(dispatch.sent) == list(combine.received) == list(back[0].sent)


def test_times_of_a_profile_are_of_the_clock_of_its_rank(profiled: Path) -> None:
    path = files(profiled, "profiler")[0]
    base = load(path)["baseTimeNanoseconds"]
    _, merged = import_files(files(profiled, "profiler"))
    every = np.arange(len(merged.trace.occurrences))
    issue, start, end = merged.trace.times(every, own_clock=True)
    told = start != UNKNOWN_TIME
    assert told.mean() > 0.8  # gloo tells of all calls but sends
    assert (issue[issue != UNKNOWN_TIME] > base).all()
    assert (end[told] > start[told]).all()
    steps = merged.trace.steps
    assert (steps.end >= steps.start).all()
    assert (issue[told].min() >= steps.start.min()) & (start[told] < end.max()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_rank_is_recovered_from_its_peers(profiled: Path, kind: str) -> None:
    every = files(profiled, kind)
    _, merged = import_files([f for f in every if "rank2" not in f.name])
    trace = merged.trace
    assert merged.contradictions == ()
    assert "rank 2 recorded nothing" in merged.missing
    assert any("rank 2 are recovered" in m and "but for" in m for m in merged.missing)
    assert not trace.meta.complete
    seen = calls(trace)
    with Trace.open(profiled / "recorded.h5") as recorded:
        compared = 0
        for key, (*_, expected, _) in calls(recorded).items():
            *_, values, present = seen[key]
            if key[1] != ALL_TO_ALL:
                assert not present[2]
                continue
            expected[2][2] = 0  # what it kept for itself nobody else saw
            assert (values, present) == (expected, [True] * 4)
            compared += 1
    assert compared == 3 * 6
    of = trace.find(operation=ALL_TO_ALL)
    assert (
        (trace.presence(of) == Presence.RECOVERED) == [False, False, True, False]
    ).all()


def rewritten(
    folder: Path, source: Path, change: Callable[[dict[str, Any]], None]
) -> Path:
    told = load(source)
    change(told)
    path = folder / source.name.removesuffix(".gz")
    path.write_text(json.dumps(told))
    return path


def exchanges(profile: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        e["args"]
        for e in profile["traceEvents"]
        if e["name"] == "c10d::alltoall_base_"
        and e["args"]["Concrete Inputs"][3] != "[]"
    ]


def test_what_was_not_received_as_sent_names_call_and_pair(
    profiled: Path, tmp_path: Path
) -> None:
    def change(profile: dict[str, Any]) -> None:
        # rank 1 moves a row of what it received from rank 0 to rank 3
        for args in exchanges(profile)[:4:3]:
            rows = json.loads(args["Concrete Inputs"][3])
            if rows[0]:
                rows[0], rows[3] = rows[0] - 1, rows[3] + 1
            else:
                rows[0], rows[3] = rows[0] + rows[3], 0
            args["Concrete Inputs"][3] = str(rows)

    every = files(profiled, "profiler")
    every[1] = rewritten(tmp_path, every[1], change)
    _, merged = import_files(every)
    said = " ".join(merged.contradictions)
    assert "iteration 0" in said
    assert "bytes to rank 1, which received" in said


def test_splits_that_do_not_fill_the_buffer_name_the_call(
    profiled: Path, tmp_path: Path
) -> None:
    def change(profile: dict[str, Any]) -> None:
        args = exchanges(profile)[0]
        rows = json.loads(args["Concrete Inputs"][4])
        args["Concrete Inputs"][4] = str([rows[0] + 5, *rows[1:]])

    every = files(profiled, "profiler")
    every[2] = rewritten(tmp_path, every[2], change)
    _, merged = import_files(every)
    assert any(
        f"{every[2].name}: call 1 of rank 2 (all_to_all): its splits make" in said
        for said in merged.contradictions
    )
    # the row is not known, and so taken from those who received it
    of = merged.trace.find(operation=ALL_TO_ALL)
    assert (merged.trace.presence(of) == Presence.RECOVERED).sum() == 1


def test_calls_without_shapes_stay_without_a_size(
    profiled: Path, tmp_path: Path
) -> None:
    def change(profile: dict[str, Any]) -> None:
        for event in profile["traceEvents"]:
            for name in ("Input Dims", "Concrete Inputs", "Input type"):
                event.get("args", {}).pop(name, None)
        # one group alone, or nobody could say which one a call was on
        del profile["distributedInfo"]["pg_config"][1:]

    every = [rewritten(tmp_path, f, change) for f in files(profiled, "profiler")]
    _, merged = import_files(every)
    assert any("calls have unknown byte counts" in m for m in merged.missing)
    trace = merged.trace
    of = trace.find(operation=ALL_TO_ALL)
    assert len(of) == 3 * 6
    assert not trace.present(of).any()
    with pytest.raises(TraceError, match="are unavailable"):
        trace.wire(of[:1])


# ---- a group of more ranks than torch writes out ---------------------------------


def wide(profiled: Path, folder: Path, *, cut: bool) -> list[Path]:
    """The profiles of 40 ranks, made from that of one.

    torch leaves lists of more than 30 entries out of operators; record_param_comms,
    which only NCCL has, cuts them.
    """
    told = load(profiled / "wide_profile_rank3.json")
    (operator,) = (e for e in told["traceEvents"] if "alltoall" in e["name"])
    assert operator["args"]["Concrete Inputs"][3:5] == ["", ""]
    found = []
    for rank in range(WIDE):
        sent = [(rank + to) % 7 for to in range(WIDE)]
        received = [(source + rank) % 7 for source in range(WIDE)]
        events = [{**operator, "args": {**operator["args"]}}]
        events[0]["args"]["Input Dims"] = [
            [sum(received), 8],
            [sum(sent), 8],
            *[[]] * 5,
        ]
        if cut:
            shown = {
                f"{side} split size": f"[{', '.join(map(str, rows[:30]))}, ...]"
                for side, rows in (("In", sent), ("Out", received))
            }
            events.append(
                {
                    **operator,
                    "name": "record_param_comms",
                    "ts": operator["ts"] + 1,
                    "dur": operator["dur"] - 2,
                    "args": {
                        "Collective name": "all_to_allv",
                        "dtype": "Float",
                        "In msg nelems": 8 * sum(sent),
                        "Out msg nelems": 8 * sum(received),
                        "Group size": WIDE,
                        "Process Group Name": "0",
                        "Process Group Ranks": f"[{', '.join('0' * 30)}, ...]",
                        **shown,
                    },
                }
            )
        one = {**told, "traceEvents": events}
        one["distributedInfo"] = {**told["distributedInfo"], "rank": rank}
        found.append(folder / f"rank{rank}.json")
        found[-1].write_text(json.dumps(one))
    return found


def test_cut_lists_are_filled_by_peers_and_never_guessed(
    profiled: Path, tmp_path: Path
) -> None:
    _, merged = import_files(wide(profiled, tmp_path, cut=True))
    assert merged.contradictions == ()
    trace = merged.trace
    (number,) = (n for n, s in enumerate(trace.sites) if s.operation == ALL_TO_ALL)
    of = np.flatnonzero(trace.occurrences.site == number)
    # ranks from 30 on see of each other only what was cut off
    assert trace.present(of)[0].tolist() == [True] * 30 + [False] * 10
    assert (trace.presence(of) == Presence.RECOVERED)[0].tolist() == [True] * 30 + [
        False
    ] * 10
    (sent,) = trace.wire(of)
    rank = np.arange(WIDE)
    expected = (rank[:, None] + rank) % 7 * 32
    assert (sent[:30] == expected[:30]).all()
    assert (sent[30:, :30] == expected[30:, :30]).all()
    assert "10 calls have unknown byte counts" in merged.missing


def test_lists_that_were_left_out_are_absent_not_even(
    profiled: Path, tmp_path: Path
) -> None:
    _, merged = import_files(wide(profiled, tmp_path, cut=False))
    assert not merged.trace.present(np.arange(len(merged.trace.occurrences))).any()


def test_an_execution_trace_does_not_cut(profiled: Path) -> None:
    merged: Merged
    _, merged = import_files([profiled / "wide_et_rank3.json"])
    trace = merged.trace
    (of,) = (np.flatnonzero(trace.occurrences.site == n) for n in range(1))
    row = trace.wire(of)[0][3]
    assert row.tolist() == [(3 + to) % 7 * 32 for to in range(WIDE)]
    assert "ranks 0 to 2 recorded nothing" in merged.missing
    assert f"ranks 4 to {WIDE - 1} recorded nothing" in merged.missing


def test_steps_without_marks_end_with_their_optimizers(
    profiled: Path, tmp_path: Path
) -> None:
    """Two optimizers after each step, in place of ProfilerStep."""
    for path in files(profiled, "profiler"):
        profile = load(path)
        marks = [e for e in profile["traceEvents"] if "ProfilerStep" in str(e["name"])]
        rest = [e for e in profile["traceEvents"] if e not in marks]
        for mark in marks[:3]:
            end = mark["ts"] + mark["dur"]
            for name, begin in (("SGD", end - 0.02), ("Adam", end - 0.01)):
                step = {
                    "name": f"Optimizer.step#{name}.step",
                    "ts": begin,
                    "dur": 0.005,
                }
                rest.append(mark | step)
        profile["traceEvents"] = rest
        (tmp_path / path.name.removesuffix(".gz")).write_text(json.dumps(profile))
    _, marked = import_files(files(profiled, "profiler"))
    _, merged = import_files(sorted(tmp_path.glob("profile*")))
    trace = merged.trace
    assert trace.iterations.tolist() == [0, 1, 2]
    assert set(trace.steps.source.tolist()) == {Source.LINKED}
    for iteration in range(3):
        there = marked.trace.find(
            operation=ALL_TO_ALL, iterations=f"{iteration}:{iteration + 1}"
        )
        here = trace.find(
            operation=ALL_TO_ALL, iterations=f"{iteration}:{iteration + 1}"
        )
        assert len(here) == len(there)
        assert trace.wire(here).sum() == marked.trace.wire(there).sum()


def test_a_profile_that_is_merged_from_ranks_is_refused(
    profiled: Path, tmp_path: Path
) -> None:
    first, second, *_ = files(profiled, "profiler")
    merged = load(first)
    for event in load(second)["traceEvents"]:
        merged["traceEvents"].append(event | {"pid": f"[TP01] {event.get('pid')}"})
    path = tmp_path / "merged-rank0.json"
    path.write_text(json.dumps(merged))
    with pytest.raises(TraceError, match="merged from several ranks"):
        import_files([path])


def test_calls_beside_an_operator_that_still_runs_are_kept(
    profiled: Path, tmp_path: Path
) -> None:
    """Gloo's operators end late: torch writes the next ones as if inside them."""
    for path in files(profiled, "execution-trace"):
        written = load(path)
        before = None
        for node in sorted(written["nodes"], key=lambda node: node["id"]):
            if node["name"].startswith("c10d::alltoall"):
                if before is not None:
                    node["ctrl_deps"] = before
                before = node["id"]
        (tmp_path / path.name.removesuffix(".gz")).write_text(json.dumps(written))
    _, expected = import_files(files(profiled, "execution-trace"))
    _, merged = import_files(sorted(tmp_path.glob("et*")))
    there, here = calls(expected.trace), calls(merged.trace)
    assert there.keys() == here.keys()
    assert [v[-2:] for v in there.values()] == [v[-2:] for v in here.values()]
