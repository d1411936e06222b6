"""``moetraffic import`` writes a trace, or one sentence and nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moetraffic.cli import main
from moetraffic.trace import Trace

HEADER = "iteration,layer,phase,source,destination,bytes\n"
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_import_writes_a_trace_and_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "my run.h5"
    table = EXAMPLES / "exchange.csv"
    assert main(["import", str(table), "-o", str(output), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["data"]
    assert (told["format"], told["meta"]["origin"]) == ("csv", "imported")
    assert told["meta"]["source"] == "exchange.csv"
    with Trace.open(output) as trace:
        found = trace.matrix(1, 1, "dispatch", of="wire").values
        assert found.tolist() == [[0, 6144], [1024, 0]]
    assert main(["import", str(table), "-o", str(output)]) == 2
    assert "give --force" in capsys.readouterr().err
    assert main(["import", str(table), "-o", str(output), "--force"]) == 0
    assert f"Next: moetraffic analyze '{output}'" in capsys.readouterr().out
    assert main(["info", str(output)]) == 0
    said = capsys.readouterr().out
    # routing is not in the file: no router can be registered any more
    assert "import a table of tokens" in said
    assert "register" not in said


def test_matrices_without_a_layer_are_named_by_another_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, table = tmp_path / "run.h5", EXAMPLES / "matrix.txt"
    assert main(["import", str(table), "-o", str(output)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "all_to_all 1 1 0 0" in said  # calls, with sizes, layer and phase
    assert "--experts or --k: each matrix is a layer's dispatch" in said
    again = ["--experts", "8", "--k", "2", "--force"]
    assert main(["import", str(table), "-o", str(output), *again]) == 0
    assert "all_to_all 1 1 1 1" in " ".join(capsys.readouterr().out.split())


def test_contradictions_write_nothing_unless_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, size in ((0, 9000), (1, 8192)):
        name = "Send" if rank == 0 else "Recv"
        perf = {"p2p": name, "p2p_peer": 1 - rank, "p2p_msg_size_bytes": size}
        told = {
            "header": {"id": "0x1", "rank": rank, "n_ranks": 2},
            "metadata": {"hostname": "node", "pid": rank + 1},
            "p2p_perf": perf,
        }
        (tmp_path / f"node-pid{rank}.log").write_text(json.dumps(told) + "\n")
    files = [str(p) for p in sorted(tmp_path.glob("*.log"))]
    output = tmp_path / "run.h5"
    assert main(["import", *files, "-o", str(output)]) == 2
    said = capsys.readouterr().err
    assert "rank 0 sent 9000 bytes to rank 1, which received 8192" in said
    assert said.count("\n") == 1
    assert not output.exists()
    assert main(["import", *files, "-o", str(output), "--keep"]) == 0
    assert "contradiction: " in capsys.readouterr().out
    assert output.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "pcap"], "a format is one of profiler"),
        (["--ranks", "-1"], "'--ranks': it must be at least 0"),
        (["--from", "matrix", "--unit", "KB"], "a unit is one of B, KiB"),
        (["--from", "profiler"], "cannot be imported"),
    ],
)
def test_wrong_use_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(HEADER + "0,0,dispatch,0,1,5\n")
    output = tmp_path / "run.h5"
    assert main(["import", str(table), "-o", str(output), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not output.exists()
