"""What this machine cannot train is refused before a rank starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moetraffic.capture.training import check_workload
from moetraffic.errors import LayoutError
from moetraffic.launch import devices
from moetraffic.patterns import Layout, ModelShape, Training, Workload
from moetraffic.patterns.workload import RANK_BYTES, least_bytes


def test_memory_that_is_surely_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available_bytes", lambda: 500_000_000)
    check_workload(Workload(), ranks=1)
    wide = Workload(model=ModelShape(hidden=4096, heads=4))
    with pytest.raises(LayoutError, match=r"at least .* GB .* but 0\.5 GB are avail"):
        check_workload(wide, ranks=1)
    many = Workload(layout=Layout(dp=8, ep=8))
    with pytest.raises(LayoutError, match="or --nproc"):
        check_workload(many, ranks=8)
    check_workload(many, ranks=1)  # one of eight hosts
    monkeypatch.setattr(devices, "available_bytes", lambda: None)
    check_workload(wide, ranks=1)


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
    monkeypatch.setattr(devices, "available_bytes", lambda: needed)
    check_workload(one, ranks=64)
    monkeypatch.setattr(devices, "available_bytes", lambda: needed - 1)
    with pytest.raises(LayoutError, match="lower --layers"):
        check_workload(one, ranks=64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(LayoutError, match="sees none: use --device cpu"):
        check_workload(Workload(training=Training(device="cuda")), ranks=1)


def test_a_corpus_that_is_not_there(tmp_path: Path) -> None:
    missing = Workload(training=Training(corpus=str(tmp_path / "none.txt")))
    with pytest.raises(LayoutError, match="is none of them"):
        check_workload(missing, ranks=1)
