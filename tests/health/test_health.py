"""What doctor finds, on this machine and on ones that lack something."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from moetraffic.cli import main
from moetraffic.data import path as shipped
from moetraffic.health import Finding, State, examine, machine, stops
from moetraffic.health.exchange import try_ranks
from moetraffic.health.machine import numbers, requirements

GOLDEN = shipped("golden.h5")


def named(findings: list[Finding], name: str) -> Finding:
    (found,) = [f for f in findings if f.name == name]
    return found


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_this_machine_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With two real ranks over gloo, and all that a replay needs."""
    asked = ["doctor", "--for", str(GOLDEN), "-o", str(tmp_path / "run.h5"), "--json"]
    code = main(asked)
    told = json.loads(capsys.readouterr().out)
    assert (code, told["stops"]) == (0, [])
    states = {(f["area"], f["name"]): f for f in told["findings"]}
    assert "2 ranks met" in states["network", "exchange"]["said"]
    assert states["replay", "ranks"]["said"] == "2, as in the trace"
    assert {a for a, _ in states} >= {"software", "torch", "files", "machine"}
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_packages_are_those_that_the_project_requires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = [
        "torch>=2.5",
        "tomli>=2; python_version < '3.11'",
        "openpyxl>=3.1; extra == 'tables'",
        'megatron-core==0.16.1; extra == "examples-megatron"',
        "moetraffic[xarray]; extra == 'test'",
        "pytest>=8; extra == 'test'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: needs)
    assert requirements() == [("torch", "2.5", ""), ("openpyxl", "3.1", "tables")]


@pytest.mark.parametrize(
    ("have", "least", "enough"),
    [
        ("2.4", "2.4", True),
        ("2.10", "2.9", True),
        ("2.3.9", "2.4", False),
        ("13", "13.0.1", False),
        ("2.13.0+cpu", "2.4", True),
        ("3.0rc1", "2", True),
    ],
)
def test_versions_are_compared_by_number(have: str, least: str, enough: bool) -> None:
    assert (numbers(have) >= numbers(least)) is enough


def test_what_is_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOETRAFFIC_HOOK", "fortran")
    monkeypatch.setenv("RANK", "4")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(machine, "available_bytes", lambda: 1_000_000)
    found = examine(tmp_path / "not-there")
    wrong = {f.name for f in stops(found)}
    assert wrong == {"compiled hook", "launcher", "folder"}
    assert named(found, "memory").state is State.NOTE
    assert named(found, "folder").remedy
    assert all(not f.remedy for f in found if f.state is State.OK)


def test_ranks_that_cannot_work_together_stop(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["doctor", "--no-exchange", "-o", str(tmp_path / "run.h5")]
    assert main([*asked, "--for", str(GOLDEN), "--nproc", "4"]) == 1
    said = capsys.readouterr().out
    assert "--expand 4" in said
    assert "1 of" in said.splitlines()[0]
    assert "CPython" not in said  # what is fine is in --tables
    assert main([*asked, "--tables"]) == 0
    assert "CPython" in capsys.readouterr().out
    assert main([*asked, "--for", str(tmp_path / "none.h5")]) == 1
    assert "there is no file" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--nproc", "2"]) == 2
    assert "add --for" in capsys.readouterr().err


def test_an_interface_that_is_not_there_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    (found,) = try_ranks()
    assert found.state is State.STOP
    assert "nowhere0" in found.said
    assert "GLOO_SOCKET_IFNAME" in found.remedy


def test_gpus_and_nccl_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a torch that says it has two GPUs, with NCCL and without."""
    card = SimpleNamespace(name="GPU X", total_memory=80_000_000_000)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: card)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 3))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    found = examine(tmp_path)
    assert named(found, "GPUs").said == "GPU X, 80 GB; GPU X, 80 GB"
    assert named(found, "NCCL").said == "version 2.28.3, for CUDA 13.0"
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    found = examine(tmp_path)
    assert named(found, "NCCL").state is State.NOTE
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    assert "gloo" in {f.name for f in stops(examine(tmp_path))}
