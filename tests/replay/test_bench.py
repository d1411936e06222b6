"""The benchmark: every collective right and counted, as ranks and as a command."""

from __future__ import annotations

import json

import pytest
import torch

from moetraffic.errors import ReplayError
from moetraffic.patterns.bandwidth import read_table
from moetraffic.patterns.collectives import wire_bytes
from moetraffic.replay.bench.__main__ import main
from moetraffic.replay.bench.measure import Measurement, run_rank
from moetraffic.replay.bench.sweep import MEASURED, Sweep, size_range
from moetraffic.replay.transport import Transport


def everything(**more):
    return Sweep(
        **{
            "collectives": MEASURED,
            "sizes": (24, 5000),
            "warm_up": 1,
            "iterations": 2,
            "timeout_s": 30.0,
            **more,
        }
    )


def test_sizes_are_whole_elements_a_rank_as_in_nccl_tests():
    asked = everything(sizes=(1, 24, 25, 26, 100))
    assert asked.rounded("all_reduce", 3) == [24, 100]
    assert asked.rounded("all_gather", 3) == [24, 96]
    calls = [size for name, size in asked.calls(3) if name == "all_gather"]
    assert calls == [24, 96]
    assert asked.name(3, 0) == "all_reduce of 24 B"
    assert asked.name(3, 4 + 3) == "all_reduce of 100 B"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"collectives": ("sum",)}, "a collective is one of all_reduce"),
        ({"dtype": "float16"}, "an element type is one of float32"),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong, sentence):
    with pytest.raises(ReplayError, match=sentence):
        everything(**wrong)


def test_ranges_and_ranks_that_cannot_be_are_refused():
    for begin, end, factor in (
        ("4M", "1M", 2),
        ("1", "1G", 1.0001),
        ("1K", "2K", 1.0),
        ("0", "2K", 2),
        ("many", "2K", 2),
    ):
        with pytest.raises(ReplayError):
            size_range(begin, end, factor)
    for sweep, ranks, sentence in (
        (everything(), 1, "2 ranks or more"),
        (everything(sizes=(4,)), 3, "raise -e"),
    ):
        with pytest.raises(ReplayError, match=sentence):
            sweep.calls(ranks)


# ---- on real ranks -------------------------------------------------------------------


def test_every_collective_arrives_right_and_is_counted_by_its_convention(forked):
    asked = everything(dtype="int32")

    def work(rank_env):
        result = run_rank(asked, rank_env)
        return result and json.dumps(result.to_dict())

    document, *others = forked(3, work)
    assert others == [None, None]
    rows = json.loads(document)["tables"]["measurements"]
    assert len(rows) == len(asked.calls(3))
    for row in rows:
        assert row["wrong"] == 0, row
        assert row["time_us"] > 0
        wire = wire_bytes(row["collective"], 3, row["size_bytes"])
        assert row["wire_bytes"] == round(float(wire))
        ratio = row["busbw_gbs"] / row["algbw_gbs"]
        assert ratio == pytest.approx(row["wire_bytes"] / row["size_bytes"])


@pytest.mark.slow
def test_wrong_elements_are_counted_on_the_rank_that_has_them(forked):
    asked = everything()

    def work(rank_env):
        gloo = Transport("gloo")
        gloo.start(rank_env, ((0, 1),), 30.0)
        counts = []
        for call in asked.calls(2):
            made = Measurement(call, asked, rank_env.rank, 2, gloo)
            right, run = made.wrong(7), made.run

            def spoil(made=made, run=run):
                run()
                if len(made.receive):
                    made.receive[-1] += 1
                    made.receive[0] -= 1

            made.run = spoil
            counts.append([right, made.wrong(8)])
        gloo.stop()
        return counts

    first, second = forked(2, work)
    for (name, _), one, two in zip(asked.calls(2), first, second, strict=True):
        assert one == [0, 2], name
        assert two == [0, 0 if name in ("reduce", "gather") else 2], name


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_the_command_starts_ranks_and_its_file_is_a_table(ending, tmp_path, capsys):
    out = tmp_path / f"bench.{ending}"
    tables = [] if ending == "json" else ["--only", "measurements"]
    asked = ["all_reduce", "-b", "1K", "-e", "64K", "-f", "8", "-n", "2", "-w", "1"]
    assert main([*asked, "-o", str(out), *tables]) == 0
    table = read_table(out)
    assert len(table) == 3
    answer = table.effective("all_reduce", 2, 3000)
    assert answer.inside
    assert float(answer.time_s) > 0
    capsys.readouterr()
    assert main(["all_reduce", "--show", str(out), "-b", "8K"]) == 0
    printed = capsys.readouterr().out
    assert "all_reduce of 8,192 B on 2 ranks: " in printed
    assert "measured." in printed
    # refused before any rank starts, and the file is kept
    assert main(["all_reduce", "-o", str(out)]) == 2
    assert main(["all_reduce", "-o", str(tmp_path / "bench.txt")]) == 2


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_nccl_moves_right_bytes(tmp_path):
    out = tmp_path / "bench.json"
    assert main(["all", "-e", "1M", "--backend", "nccl", "-o", str(out)]) == 0
    assert len(read_table(out)) > 0
