"""Numbers of a trace's metadata outside their range are rejected."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moetraffic.cli.app import main
from moetraffic.errors import TraceError
from moetraffic.trace import Trace
from moetraffic.trace.hdf5.codec import attributes_checksum
from moetraffic.trace.segments.segment import (
    rank_folder,
    read_segment,
    write_segment,
)

from .conftest import make_trace
from .merge.test_merging import make

DEGREES = ("dp", "tp", "pp", "ep", "cp")
COUNTS = ("layers", "hidden", "k", "experts")
TRACE = make_trace()
WORLD = TRACE.meta.world


def most(name: str) -> int:
    if name in DEGREES:
        return WORLD
    return 1 << 20 if name == "experts" else (1 << 31) - 1


def least(name: str) -> int:
    return int(name in DEGREES)


NAMES = st.sampled_from([*DEGREES, *COUNTS])
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
OUTSIDE = NAMES.flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.one_of(
            INT64.filter(lambda v: not least(name) <= v <= most(name)),
            st.sampled_from([least(name) - 1, most(name) + 1, 1 << 40, -1]),
        ),
    )
)
INSIDE = st.fixed_dictionaries(
    {name: st.integers(least(name), most(name)) for name in (*DEGREES, *COUNTS)}
)


@given(OUTSIDE)
def test_no_trace_has_a_number_outside_its_range(given: tuple[str, int]) -> None:
    name, value = given
    with pytest.raises(TraceError) as refused:
        TRACE.replaced(meta=replace(TRACE.meta, **{name: value}))
    text = str(refused.value)
    assert f"{name} lies between {least(name)} and {most(name)}" in text
    assert f"(here it is {value})" in text
    assert "\n" not in text


@given(INSIDE)
def test_numbers_within_their_range_are_kept(given: dict[str, int]) -> None:
    meta = TRACE.replaced(meta=replace(TRACE.meta, **given)).meta
    assert given.items() <= meta.as_dict().items()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranges") / "run.h5"
    TRACE.save(path)
    return path


def changed(path: Path, name: str, value: Any) -> Path:
    """A copy of a file with another root attribute, and checksums to match."""
    copy = path.with_name("changed.h5")
    shutil.copy(path, copy)
    with h5py.File(copy, "r+", libver=("v110", "v110")) as file:
        file.attrs[name] = np.int64(value)
        attributes = {
            n: v.decode() if isinstance(v, bytes) else v.item()
            for n, v in file.attrs.items()
        }
        at = file["checksum"][:].tolist().index(b"")
        file["checksum_crc32"][at] = attributes_checksum(attributes)
    return copy


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OUTSIDE)
def test_files_with_a_number_outside_its_range_are_rejected(
    saved: Path, given: tuple[str, int]
) -> None:
    name, value = given
    with pytest.raises(TraceError, match=f"{name} lies between"):
        Trace.open(changed(saved, name, value))


def test_the_command_line_names_the_number(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(changed(saved, "ep", 1 << 40))]) == 2
    err = capsys.readouterr().err
    assert f"ep lies between 1 and {WORLD} (here it is {1 << 40})" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [("k", -1), ("tp", 0), ("experts", 1 << 40)]
)
def test_segments_with_a_number_outside_its_range_are_rejected(
    tmp_path: Path, name: str, value: int
) -> None:
    segment = make(0, 0)
    rank_folder(tmp_path, 0).mkdir()
    meta = replace(segment.meta, **{name: value})
    path = write_segment(replace(segment, meta=meta), tmp_path)
    with pytest.raises(TraceError, match=f"{name} lies between"):
        read_segment(path)
