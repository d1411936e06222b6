"""Damaged files are refused or read right.

``mutations`` and ``rewrites`` damage sound files, ``judge`` reads them, ``campaign``
does so in processes under limits.  Here its verdicts are looked at.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PARTS, FILES = 20, 500
GOOD = {"right", "refused", "left out", "another trace"}
"""What may become of a damaged file; "another trace" only where it was resealed."""


def verdicts(folder: Path, *options: object) -> list[dict[str, Any]]:
    ran = subprocess.run(
        [sys.executable, HERE / "campaign.py", folder, *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = (folder / "verdicts.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def look(found: list[dict[str, Any]], files: int) -> Counter[str]:
    bad = [one for one in found if one["outcome"] not in GOOD]
    assert not bad, bad[:3]
    assert len(found) == files
    return Counter(one["outcome"] for one in found)


FOREIGN = GOOD | {"altered"}
"""Of files without checksums: what was changed may say something else."""


def look_at_foreign(found: list[dict[str, Any]], files: int) -> Counter[str]:
    bad = [one for one in found if one["outcome"] not in FOREIGN]
    assert not bad, bad[:3]
    assert len(found) == files
    said = Counter(one["what"].partition(",")[0] for one in found)
    assert len(said) == 9, said  # seven formats, models, segments
    return Counter(one["outcome"] for one in found)


@pytest.mark.slow
def test_damaged_files_of_others_are_refused_or_read(tmp_path: Path) -> None:
    outcomes = look_at_foreign(verdicts(tmp_path, "--foreign", "--files", 150), 150)
    assert outcomes["refused"] > 40
    assert outcomes["altered"] > 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_damaged_files_of_others(part: int, tmp_path: Path) -> None:
    asked = ("--foreign", "--first", part * FILES, "--files", FILES)
    outcomes = look_at_foreign(verdicts(tmp_path, *asked), FILES)
    assert outcomes["refused"] > FILES / 4


def test_damaged_files_are_noticed(tmp_path: Path) -> None:
    outcomes = look(verdicts(tmp_path, "--files", 120), 120)
    assert outcomes["refused"] > 25
    assert outcomes["right"] > 8  # what means nothing may change
    assert outcomes["left out"] > 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_damaged_files(part: int, tmp_path: Path) -> None:
    asked = ("--first", part * FILES, "--files", FILES, "--labeled")
    found = verdicts(tmp_path, *asked)
    outcomes = look(found, FILES)
    assert outcomes["refused"] > FILES / 3
