"""Compiling the hook: a build that is ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from moetraffic.capture.hook import native
from moetraffic.cli import main


def test_an_ended_build_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As launchers end a process."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

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
