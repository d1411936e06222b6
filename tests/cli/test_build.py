"""Compiling the hook: a build that is ended, and the suggestion to build it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from moetraffic.capture.hook import native
from moetraffic.cli import main
from moetraffic.cli.recording.build import OFFERED, offer


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler, and nothing built yet."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MOETRAFFIC_HOOK", raising=False)
    return tmp_path / "cache" / "moetraffic"


def told(capsys: pytest.CaptureFixture[str]) -> str:
    offer()
    return capsys.readouterr().err


def test_it_is_made_once(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    # capsys has its own stderr
    sys.stderr.isatty = lambda: True  # type: ignore[method-assign]
    assert told(capsys).endswith("per collective: moetraffic build\n")
    assert (cache / OFFERED).exists()
    assert told(capsys) == ""


@pytest.mark.parametrize("lacks", ["compiler", "terminal", "cache", "choice", "need"])
def test_it_is_not_made_without(
    lacks: str,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sys.stderr.isatty = lambda: lacks != "terminal"  # type: ignore[method-assign]
    if lacks == "compiler":
        monkeypatch.setattr(shutil, "which", lambda tool: None)
    elif lacks == "cache":
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    elif lacks == "choice":
        monkeypatch.setenv("MOETRAFFIC_HOOK", "python")
    elif lacks == "need":
        cache.mkdir(parents=True)
        (cache / "moetraffic_hook_1.so").touch()
    assert told(capsys) == ""
    assert not (cache / OFFERED).exists()


def test_it_names_how_to_install_ninja(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.stderr.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(shutil, "which", lambda t: None if t == "ninja" else t)
    assert "pip install" in told(capsys)


def test_an_ended_build_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a demo whose report is drawn long before."""

    def ended(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    monkeypatch.setattr(cpp_extension, "load", ended)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["build"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert list(native.folders()[0].iterdir()) == []
