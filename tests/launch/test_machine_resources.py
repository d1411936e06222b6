"""What this machine cannot train is refused before a rank starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moetraffic.errors import LayoutError
from moetraffic.launch import machine_resources
from moetraffic.patterns import Layout, ModelShape, Training, Workload
from moetraffic.patterns.workload import RANK_BYTES, least_bytes


def test_memory_that_is_surely_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_resources, "available_bytes", lambda: 500_000_000)
    machine_resources.check_workload(Workload(), ranks=1)
    wide = Workload(model=ModelShape(hidden=4096, heads=4))
    with pytest.raises(LayoutError, match=r"at least .* GB .* but 0\.5 GB are avail"):
        machine_resources.check_workload(wide, ranks=1)
    many = Workload(layout=Layout(dp=8, ep=8))
    with pytest.raises(LayoutError, match="or --nproc"):
        machine_resources.check_workload(many, ranks=8)
    machine_resources.check_workload(many, ranks=1)  # one of eight hosts
    monkeypatch.setattr(machine_resources, "available_bytes", lambda: None)
    machine_resources.check_workload(wide, ranks=1)


def test_a_virtual_run_needs_the_memory_of_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Workload(
        model=ModelShape(experts=64),
        layout=Layout(dp=64, ep=64),
        training=Training(virtual=True),
    )
    needed = least_bytes(one)
    assert needed < 64 * RANK_BYTES
    monkeypatch.setattr(machine_resources, "available_bytes", lambda: needed)
    machine_resources.check_workload(one, ranks=64)
    monkeypatch.setattr(machine_resources, "available_bytes", lambda: needed - 1)
    with pytest.raises(LayoutError, match="lower --layers"):
        machine_resources.check_workload(one, ranks=64)


def test_this_machine_tells_its_memory() -> None:
    there = machine_resources.available_bytes()
    assert there is not None
    assert 0 < there < 1 << 50


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(LayoutError, match="sees none: use --device cpu"):
        machine_resources.check_workload(
            Workload(training=Training(device="cuda")), ranks=1
        )


def test_a_corpus_that_is_not_there(tmp_path: Path) -> None:
    missing = Workload(training=Training(corpus=str(tmp_path / "none.txt")))
    with pytest.raises(LayoutError, match="is none of them"):
        machine_resources.check_workload(missing, ranks=1)


@pytest.mark.parametrize(("ranks", "said"), [(0, "at least one"), (10**6, "at most")])
def test_ranks_that_no_host_has(ranks: int, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        machine_resources.check_rank_count(ranks)


def test_the_tightest_control_group_around_this_process_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "slice" / "job"
    own.mkdir(parents=True)
    for folder, limit in ((own, "max"), (own.parent, "5000"), (tmp_path, "9000")):
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text("2000")
        (folder / "memory.stat").write_text("anon 1500\nfile 500\n")
    membership = tmp_path / "cgroup"
    membership.write_text("3:cpu:/elsewhere\n0::/slice/job\n")
    monkeypatch.setattr(machine_resources, "_ROOT", tmp_path)
    monkeypatch.setattr(machine_resources, "_MEMBERSHIP", membership)
    assert machine_resources.available_bytes() == 5000 - 2000 + 500
    membership.write_text("0::/seen/from/outside\n")  # a container: its own is the root
    assert machine_resources.available_bytes() == 9000 - 2000 + 500


def test_the_first_version_of_control_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "memory" / "job"
    own.mkdir(parents=True)
    (own / "memory.limit_in_bytes").write_text("7000")
    (own / "memory.usage_in_bytes").write_text("6000")
    (own / "memory.stat").write_text("total_cache 100\n")
    membership = tmp_path / "cgroup"
    membership.write_text("9:name=systemd:/\n4:cpu,memory:/job\n")
    monkeypatch.setattr(machine_resources, "_ROOT", tmp_path)
    monkeypatch.setattr(machine_resources, "_MEMBERSHIP", membership)
    assert machine_resources.available_bytes() == 1100
