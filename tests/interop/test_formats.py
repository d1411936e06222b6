"""Router traces, NCCL Inspector, matrices and CSV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from moetraffic import data
from moetraffic.errors import TraceError
from moetraffic.interop import FORMATS, ImportOptions, import_files
from moetraffic.interop.read import detect
from moetraffic.interop.write import ExportOptions as What
from moetraffic.interop.write import export_trace
from moetraffic.trace import ALL_TO_ALL, PHASES, ROUTING, Trace

# ---- Megatron-Core's router traces ------------------------------------------------


def decision(step: int, layer: int, rank: int, chosen: Any, **more: Any) -> str:
    told = {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer}
    told |= {"rank": rank, "num_tokens": len(chosen), "topk": 2, "top_indices": chosen}
    return json.dumps(told | more) + "\n"


def routed(folder: Path) -> list[Path]:
    paths = []
    for rank in (0, 1):
        path = folder / f"router_trace_rank{rank}.jsonl"
        path.write_text(
            decision(0, 1, rank, [[0, 3], [0, 1], [rank, 2]])
            + decision(0, 1, rank, [[2, 3]])  # the next micro-batch
            + decision(0, 2, rank, [])
            + decision(1, 1, rank, [[1, 0]])
            + decision(1, 1, rank, [[3, 2]], block="mtp", mtp_idx=0)
        )
        paths.append(path)
    return paths


def test_router_traces_give_demand_and_matrices(tmp_path: Path) -> None:
    _, merged = import_files(
        routed(tmp_path), options=ImportOptions(experts=4, ep=2, pp=1)
    )
    assert (merged.missing, merged.contradictions) == ((), ())
    trace = merged.trace
    assert (trace.meta.k, trace.meta.experts, trace.meta.ep) == (2, 4, 2)
    first = trace.find(operation=ROUTING, layer=1, slot=0, iterations=range(1))
    assert trace.demand(first)[0].tolist() == [[3, 1, 1, 1], [2, 2, 1, 1]]
    second = trace.find(operation=ROUTING, layer=1, slot=1)
    assert trace.demand(second)[0].tolist() == [[0, 0, 1, 1]] * 2
    # the layer that predicts a further token comes after the decoder's last
    further = trace.find(operation=ROUTING, layer=3)
    assert trace.demand(further)[0].tolist() == [[0, 0, 1, 1]] * 2
    assert trace.holder(1, 0, 0).tolist() == [0, 0, 1, 1]
    with pytest.raises(TraceError, match="did not"):
        trace.dropped(first)


def test_what_router_traces_do_not_tell_is_said(tmp_path: Path) -> None:
    _, merged = import_files(routed(tmp_path))
    assert (
        "the number of experts is not in the files, 4 were chosen" in merged.missing[0]
    )
    assert not len(merged.trace.placements)
    with pytest.raises(TraceError, match="choose expert 3, but --experts is 3"):
        import_files(routed(tmp_path), options=ImportOptions(experts=3))
    with pytest.raises(TraceError, match="change --ep"):
        import_files(routed(tmp_path), options=ImportOptions(experts=5, ep=2))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (decision(0, 1, 0, [[0, 1, 2]]), "its top_indices the shape"),
        (decision(0, 1, 0, [[0, -1]]), "outside 0 to 65535"),
        (decision(0, 1, 3, [[0, 1]]), "is of rank 3, not 0"),
        (decision(0, 1, 0, [["a", 1]]), "its top_indices the shape"),
        ('{"step": 0}\n', "has no valid step, layer or rank"),
        ("[1]\n", "which is no object"),
        (
            decision(0, 1, 0, [[0, 1]])[:-20] + "x\n{}",
            "ends too early, in line 6",
        ),
    ],
)
def test_wrong_decisions_are_refused(tmp_path: Path, line: str, said: str) -> None:
    (path, _) = routed(tmp_path)
    path.write_text(path.read_text() + line)
    with pytest.raises(TraceError, match=said):
        import_files([path])


def test_layers_of_pipeline_stages_follow_each_other(tmp_path: Path) -> None:
    """Two stages of two ranks and two layers, each of which has other experts."""
    for rank in range(4):
        stage = rank // 2
        chosen = [[[stage * 2 + layer] * 2] for layer in (0, 1)]
        lines = [decision(0, n, rank, ids) for n, ids in enumerate(chosen)]
        (tmp_path / f"router_trace_rank{rank}.jsonl").write_text("".join(lines))
    files = sorted(tmp_path.iterdir())
    _, merged = import_files(files, options=ImportOptions(experts=4, ep=2, pp=2))
    trace = merged.trace
    assert trace.layers == (0, 1, 2, 3)
    for layer in range(4):
        demand = trace.demand(trace.find(operation=ROUTING, layer=layer))
        assert demand.sum(axis=(0, 1)).tolist() == [4 * (e == layer) for e in range(4)]
    _, merged = import_files(files, options=ImportOptions(experts=4))
    assert merged.trace.layers == (0, 1)
    assert "give --pp" in merged.trace.meta.missing
    with pytest.raises(TraceError, match="--pp is 3, with 4 ranks"):
        import_files(files, options=ImportOptions(experts=4, pp=3))


def test_a_cut_last_decision_is_missing_and_an_empty_file_has_none(
    tmp_path: Path,
) -> None:
    first, second = routed(tmp_path)
    whole = first.read_text()
    first.write_text(whole + decision(9, 1, 0, [[0, 1]])[:-20])
    second.write_text("")
    _, merged = import_files([first, second])
    assert f"the last record of {first.name} is cut" in merged.missing
    assert merged.trace.meta.world == 2
    assert 9 not in merged.trace.iterations


# ---- NCCL Inspector ---------------------------------------------------------------


def inspected(folder: Path, rank: int, received: int = 8192) -> Path:
    def line(comm: str, own: int, size: int, **perf: Any) -> str:
        header = {"id": comm, "rank": own, "n_ranks": size, "nnodes": 1}
        about = {"hostname": "node", "pid": 100 + rank, "dump_timestamp_us": 1}
        return json.dumps({"header": header, "metadata": about, **perf}) + "\n"

    trace = {
        **{"coll_start_ts": 1_752_867_229_235_059, "coll_stop_ts": 1},
        "kernel_events": [
            {"kernel_start_ts": 1_752_867_229_235_181 + c}
            | {"kernel_stop_ts": 1_752_867_229_275_811 + c}
            for c in (0, 5)
        ],
    }
    coll = {"coll_sn": 4, "coll_msg_size_bytes": 65536, "event_trace_ts": trace}
    p2p = {"p2p_sn": 1, "p2p_peer": 1 - rank % 2}
    path = folder / f"node-pid{100 + rank}.log"
    path.write_text(
        line("0xa", rank, 4, coll_perf={"coll": "ReduceScatter", **coll})
        + line("0xa", rank, 4, coll_perf={"coll": "AllReduce", **coll, "coll_sn": 5})
        + line(
            *(f"0xb{rank // 2}", rank % 2, 2),
            p2p_perf={"p2p": "Send", "p2p_msg_size_bytes": 8192, **p2p},
        )
        + line(
            *(f"0xb{rank // 2}", rank % 2, 2),
            p2p_perf={"p2p": "Recv", "p2p_msg_size_bytes": received, **p2p},
        )
    )
    return path


def test_inspector_tells_messages_and_collectives(tmp_path: Path) -> None:
    found, merged = import_files([inspected(tmp_path, rank) for rank in range(4)])
    assert found == "nccl-inspector"
    assert merged.contradictions == ()
    assert "leaves out messages below 8192 bytes" in merged.missing[0]
    trace = merged.trace
    volumes = {
        (s.operation, trace.groups[s.group].ranks, s.peers): trace.volume(
            np.flatnonzero(trace.occurrences.site == n)
        ).tolist()
        for n, s in enumerate(trace.sites)
    }
    everyone = (0, 1, 2, 3)
    nowhere = (-1, -1)
    # of a reduce-scatter the size is that of one rank's part
    assert volumes["reduce_scatter", everyone, nowhere] == [[4 * 65536] * 4]
    assert volumes["all_reduce", everyone, nowhere] == [[65536] * 4]
    assert volumes["send_recv", (2, 3), (1, 0)] == [[8192, 8192]]
    of = np.array([o for o, s in enumerate(trace.occurrences.sequence) if s == 4])
    issue, start, end = trace.times(of, own_clock=True)
    assert (issue == 1_752_867_229_235_059_000).all()
    assert (end - start == 40_635_000).all()


def test_a_message_of_two_sizes_is_a_contradiction(tmp_path: Path) -> None:
    paths = [
        inspected(tmp_path, rank, 9000 if rank == 3 else 8192) for rank in range(4)
    ]
    (said,) = import_files(paths)[1].contradictions
    assert "rank 2 sent 8192 bytes to rank 3, which received 9000" in said


# ---- matrices ---------------------------------------------------------------------


def test_matrices_are_in_kib_with_fractions_rounded_to_bytes(tmp_path: Path) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text("# two steps\n0 2.9\n1  3\n\n4,5K\n6e1 1.5K # sizes\n")
    found, merged = import_files([path])
    assert found == "matrix"
    trace = merged.trace
    assert "numbers read as KiB (--unit B for bytes)" in trace.meta.inferred
    assert trace.iterations.tolist() == [0, 1]
    sent = trace.wire(np.arange(2)).tolist()
    assert sent[0] == [[0, 2970], [1024, 3072]]
    assert sent[1] == [[4096, 5120], [61440, 1536]]
    with pytest.raises(TraceError, match=r"'2\.9', which is no whole number of bytes"):
        import_files([path], options=ImportOptions(unit="B"))
    path.write_text("0 2\n1 3.0\n")
    _, merged = import_files([path], options=ImportOptions(unit="B"))
    assert "KiB" not in merged.trace.meta.inferred
    assert merged.trace.wire(np.arange(1)).tolist() == [[[0, 2], [1, 3]]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 2\n3\n", "2 rows, but its row 1 has 1 numbers"),
        ("1 2\n3 -4\n", "line 2, number 2 is '-4', which is not a number of bytes"),
        ("1 2\n3 4\n\n1\n", "differ in size"),
        ("# nothing\n", "holds no matrix"),
        ("1 2\n3 9e99\n", "too many bytes"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        import_files([path], format="matrix")


@pytest.mark.parametrize("cell", ["-1", "a"])
def test_a_matrix_with_one_wrong_cell_is_recognized(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text(f"0 {cell}\n3 0\n")
    with pytest.raises(TraceError, match=f"line 1, number 2 is '{cell}'"):
        import_files([path])


# ---- CSV --------------------------------------------------------------------------


def table(folder: Path, text: str, name: str = "run.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_plain_table_is_an_exchange(tmp_path: Path) -> None:
    text = "iteration,layer,phase,source,destination,bytes\n"
    path = table(tmp_path, text + "3,1,dispatch,0,2,64\n3,1,combine,2,0,64\n")
    _, merged = import_files([path])
    assert (merged.contradictions, merged.missing) == ((), ())
    found = merged.trace.matrix(3, 1, "dispatch", of="wire").values
    assert found.tolist() == [[0, 0, 64], [0, 0, 0], [0, 0, 0]]


@settings(max_examples=10)
@given(
    sent=arrays.arrays(np.int64, (2, 3, 3), elements=st.integers(0, 2**40)),
    routed=arrays.arrays(np.int32, (4, 4), elements=st.integers(0, 1000)),
    phase=st.sampled_from(["", "dispatch", "combine_grad"]),
)
def test_rows_of_a_table_come_back(
    tmp_path_factory: pytest.TempPathFactory, sent: Any, routed: Any, phase: str
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    lines = ["iteration,layer,phase,source,destination,bytes,micro_batch,group"]
    lines += [
        f"{5 * i},7,{phase},{s + 1},{d + 1},{sent[i, s, d]},0,ep 1-3"
        for i, s, d in np.ndindex(sent.shape)
    ]
    made = [table(folder, "\n".join(lines) + "\n", "sent.csv")]
    lines = ["expert,tokens,layer,rank,iteration,dropped"]
    lines += [f"{e},{routed[r, e]},7,{r},0,0" for r, e in np.ndindex(routed.shape)]
    made.append(table(folder, "\n".join(lines) + "\n", "routed.csv"))
    _, merged = import_files(made)
    again = [folder / "sent2.csv", folder / "routed2.csv"]
    export_trace(merged.trace, again[0], "csv")
    export_trace(merged.trace, again[1], "csv", options=What(of="demand"))
    _, twice = import_files(again)
    same_calls(merged.trace, twice.trace)
    of = twice.trace.find(operation=ALL_TO_ALL)
    assert (twice.trace.wire(of) == sent).all()
    of = twice.trace.find(operation=ROUTING)
    assert (twice.trace.demand(of) == routed).all()


def test_a_captured_trace_comes_back(captured: Path, tmp_path: Path) -> None:
    with Trace.open(captured) as opened:
        kept = [s for s in opened.find() if opened.occurrences.iteration[s] < 2]
        part = opened.select(np.array(kept))
        paths = [tmp_path / "sent.csv", tmp_path / "routed.csv"]
        export_trace(part, paths[0], "csv")
        export_trace(part, paths[1], "csv", options=What(of="demand"))
        _, merged = import_files(paths)
        trace = merged.trace
        assert merged.contradictions == ()
        for phase in PHASES:
            for layer in part.layers:
                for slot in (0, 1):
                    there, here = (
                        t.matrix(1, layer, phase, micro_batch=slot, of="wire").values
                        for t in (part, trace)
                    )
                    assert (there == here).all()
        for layer in part.layers:
            there, here = (
                t.demand(t.find(operation=ROUTING, layer=layer, iterations=range(2)))
                for t in (part, trace)
            )
            assert (there == here).all()


def same_calls(one: Trace, other: Trace) -> None:
    assert one.sites == other.sites
    assert one.groups == other.groups
    for name in ("iteration", "site", "sequence"):
        mine, its = (getattr(t.occurrences, name) for t in (one, other))
        assert mine.tolist() == its.tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("iteration,layer\n", "name them iteration"),
        ("{0}0,1,dispatch,0,1\n", "line 2 has '' for bytes"),
        ("{0}0,1,dispatch,0,1,-5\n", "'-5' for bytes"),
        ("{0}0,1,scatter,0,1,5\n", "'scatter' for phase"),
        (
            "{0}0,1,dispatch,0,1,5\n0,1,dispatch,0,1,5\n",
            "the same source and destination of a call",
        ),
        ("{0}0,1,dispatch,0,999999,5\n", "'999999' for destination"),
        ('{0}0,1,"dispatch,0,1,5\n', "it is no CSV"),
        ("{0}", "no line but the names"),
    ],
)
def test_wrong_tables_are_refused(tmp_path: Path, text: str, said: str) -> None:
    header = "iteration,layer,phase,source,destination,bytes\n"
    with pytest.raises(TraceError, match=said):
        import_files([table(tmp_path, text.replace("{0}", header))], format="csv")


def test_formats_are_found_out(tmp_path: Path) -> None:
    routed(tmp_path)
    inspected(tmp_path, 0)
    table(tmp_path, "iteration,layer,phase,source,destination,bytes\n")
    table(tmp_path, "0 1\n2 3\n", "a.txt")
    table(tmp_path, '{"schemaVersion": 1, "traceEvents": []}', "p.json")
    table(tmp_path, '{"schema": "1.1.1", "nodes": []}', "e.json")
    (tmp_path / "run.0.et").write_bytes(b"\x07\n\x050.0.4")
    table(tmp_path, "see elsewhere", "README")
    found = {p.name: detect(p) for p in tmp_path.iterdir()}
    assert {*found.values(), "load", "flight-recorder"} - {""} == set(FORMATS)
    assert found["README"] == ""
    with pytest.raises(TraceError, match=r"files of one format .* choose with --from"):
        import_files([tmp_path])
    chosen, merged = import_files([tmp_path], format="megatron")
    assert (chosen, merged.trace.meta.world) == ("megatron", 2)
    with pytest.raises(TraceError, match=r"README is not known: name .* --from"):
        import_files([tmp_path / "README"])
    with pytest.raises(TraceError, match="is a moetraffic trace, which needs no im"):
        import_files([data.path("golden.h5")])
    with pytest.raises(TraceError, match="a format is one of"):
        import_files([tmp_path], format="pcap")
    with pytest.raises(TraceError, match="there is no such file"):
        import_files([tmp_path / "nothing"])
