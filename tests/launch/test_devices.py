"""Memory of this machine, and ranks that no machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from moetraffic.errors import LayoutError
from moetraffic.launch import devices


def test_this_machine_has_memory() -> None:
    free = devices.available_bytes()
    assert free is not None
    assert 0 < free < 1 << 50


@pytest.mark.parametrize("ranks", [0, 10**6])
def test_ranks_that_no_host_has(ranks: int) -> None:
    with pytest.raises(LayoutError, match="starts 1 to 4096 ranks"):
        devices.check_rank_count(ranks)


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
    monkeypatch.setattr(devices, "GROUPS", tmp_path)
    monkeypatch.setattr(devices, "MEMBERSHIP", membership)
    assert devices.available_bytes() == 5000 - 2000 + 500
    membership.write_text("0::/seen/from/outside\n")  # a container: its own is the root
    assert devices.available_bytes() == 9000 - 2000 + 500


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
    monkeypatch.setattr(devices, "GROUPS", tmp_path)
    monkeypatch.setattr(devices, "MEMBERSHIP", membership)
    assert devices.available_bytes() == 1100
