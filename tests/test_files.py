"""Output paths are checked before the work whose result they hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moetraffic.errors import ReplayError
from moetraffic.files import validate_other_than_input, validate_output


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    for path, said in {
        tmp_path: "is a folder: name a file in it",
        Path(""): "is a folder",
        file: "is not overwritten: choose another output, or give --force",
        file / "below.h5": "which is a file",
        tmp_path / "none" / "x.h5": "does not exist: make it first",
        tmp_path / ("x" * 300): "File name too long.: choose a shorter name",
        # what is written beside the trace has a longer name
        tmp_path / ("x" * 250): "File name too long.: choose a shorter name",
        tmp_path / "pipe": "a device or a pipe",
        tmp_path / "a\0b": "cannot be written",
    }.items():
        with pytest.raises(ReplayError, match=said) as refused:
            validate_output(path, force=False, error=ReplayError)
        assert len(str(refused.value)) < 400
    validate_output(file, force=True)
    validate_output(tmp_path / "new.h5", force=False)
    assert {p.name for p in tmp_path.iterdir()} == {"file", "pipe"}


def test_an_output_that_is_the_input_under_any_name(tmp_path: Path) -> None:
    file = tmp_path / "a.h5"
    file.write_text("mine")
    (tmp_path / "link.h5").symlink_to(file)
    for name in ("a.h5", "link.h5", "../" + tmp_path.name + "/a.h5"):
        with pytest.raises(ReplayError, match="is the input itself"):
            validate_other_than_input(file, tmp_path / name, error=ReplayError)
    validate_other_than_input(file, tmp_path / "b.h5")
