"""What this machine cannot train is refused before a rank starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moetraffic.errors import LayoutError
from moetraffic.launch import machine
from moetraffic.patterns import ModelShape, ParallelLayout, Training, Workload


def test_memory_that_is_surely_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 500_000_000)
    machine.refuse_unable(Workload(), ranks=1)
    wide = Workload(model=ModelShape(hidden=4096, heads=4))
    with pytest.raises(LayoutError, match=r"at least .* GB .* but 0\.5 GB are avail"):
        machine.refuse_unable(wide, ranks=1)
    many = Workload(layout=ParallelLayout(dp=8, ep=8))
    with pytest.raises(LayoutError, match="or --nproc"):
        machine.refuse_unable(many, ranks=8)
    machine.refuse_unable(many, ranks=1)  # one of eight hosts
    monkeypatch.setattr(machine, "available_bytes", lambda: None)
    machine.refuse_unable(wide, ranks=1)


def test_this_machine_tells_its_memory() -> None:
    there = machine.available_bytes()
    assert there is not None
    assert 0 < there < 1 << 50


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(LayoutError, match="sees none: use --device cpu"):
        machine.refuse_unable(Workload(training=Training(device="cuda")), ranks=1)


def test_a_corpus_that_is_not_there(tmp_path: Path) -> None:
    missing = Workload(training=Training(corpus=str(tmp_path / "none.txt")))
    with pytest.raises(LayoutError, match="is none of them"):
        machine.refuse_unable(missing, ranks=1)


@pytest.mark.parametrize(("ranks", "said"), [(0, "at least one"), (10**6, "at most")])
def test_ranks_that_no_host_has(ranks: int, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        machine.refuse_too_many(ranks)
