"""Earlier spellings stay readable: options, configuration, stored workloads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from moetraffic import spelling
from moetraffic.analysis.times.run_calibration import calibrated
from moetraffic.cli import main
from moetraffic.patterns import Gating, Workload
from moetraffic.trace import Trace


@pytest.fixture(autouse=True)
def not_warned_yet() -> Iterator[None]:
    spelling._warn.cache_clear()
    yield
    spelling._warn.cache_clear()


def printed(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    *arguments: str,
) -> object:
    """The JSON of a verb that warns of one earlier spelling."""
    caplog.clear()
    assert main([*arguments, "--json"]) == 0
    assert len(caplog.messages) <= 1
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("verb", "old", "new", "value"),
    [
        ("estimate", "utilisation", "utilization", "0.3"),
        ("pattern --dp 2", "synchronisation", "synchronization", "ddp"),
    ],
)
def test_options_and_configuration_keys(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    verb: str,
    old: str,
    new: str,
    value: str,
) -> None:
    given = verb.split()
    expected = printed(capsys, caplog, *given, f"--{new}", value)
    assert caplog.messages == []
    assert printed(capsys, caplog, *given, f"--{old}", value) == expected
    (warning,) = caplog.messages
    assert f"{old!r} is now spelled {new!r}" in warning
    spelling._warn.cache_clear()
    table = tmp_path / "old.toml"
    table.write_text(f'[{given[0]}]\n{old} = "{value}"\n')
    assert printed(capsys, caplog, "--config", str(table), *given) == expected
    assert len(caplog.messages) == 1
    assert main([given[0], "--help"]) == 0
    assert f"--{old}" not in capsys.readouterr().out


def old_workload() -> str:
    """A workload as an earlier version stored it."""
    new = replace(Workload(), gating=Gating(options={"renormalize": True}))
    return new.to_json().replace("renormalize", "renormalise")


def test_a_stored_workload_and_a_router_option(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gating = Workload.from_json(old_workload()).gating
    assert asdict(gating)["options"] == {"renormalize": True}
    assert gating == Gating(options={"renormalise": True})
    assert len(caplog.messages) == 1


def test_a_trace_of_an_earlier_version(
    captured: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its metadata is read as that of a trace that has the current name."""
    with Trace.open(captured) as trace:
        expected = calibrated(trace)
        said = json.loads(trace.meta.workload)
        said["gating"]["options"] = {"renormalise": True}
        trace.meta = replace(trace.meta, workload=json.dumps(said))
        trace.save(tmp_path / "old.h5")
    with Trace.open(tmp_path / "old.h5") as trace:
        assert "renormalise" in trace.meta.workload
        assert calibrated(trace).config == expected.config
    assert len(caplog.messages) == 1
