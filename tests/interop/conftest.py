"""Files that torch itself wrote: made once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("profiled.py")


@pytest.fixture(scope="session")
def profiled(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The folder with the profiles, execution traces and the capture of one run."""

    def make(folder: Path) -> None:
        ran = subprocess.run(
            [sys.executable, SCRIPT, folder],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]

    return once("profiled", make)
