"""A result is shown as a table and sentences, and given as frames and JSON."""

from __future__ import annotations

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from moetraffic.columns import COLUMNS, QUANTITIES, cell_text
from moetraffic.result import Result, table_lines

ROWS = [
    {"layer": 1, "measure": "entropy", "early": 0.9, "late": 0.98, "worst_at": 5},
    {"layer": 1, "measure": "busiest_expert", "early": 1.87, "late": np.nan}
    | {"worst_at": -1},
    {"layer": 3, "measure": "entropy", "early": 0.5, "late": 0.75, "worst_at": 7},
]


def result(**more: object) -> Result:
    return Result(
        verb="analyze",
        head="run.h5: 300 iterations",
        tables={"stages": ROWS, "empty": [], "made": lambda: {"rank": np.arange(3)}},
        screen=("stages", "empty"),
        captions={"stages": "busiest: over the mean"},
        verdict=("Load became more even.",),
        notes=("no rhythm",),
        **more,
    )


def test_the_first_screen_is_head_table_sentences_and_notes() -> None:
    assert list(result().lines(("stages", "empty"), width=80)) == [
        "run.h5: 300 iterations",
        "",
        " layer                  early   late  from",
        "     1  entropy         0.900  0.980     5",
        "        busiest expert   1.87",
        "     3  entropy         0.500  0.750     7",
        " busiest: over the mean",
        "",
        "Load became more even.",
        "note: no rhythm",
    ]


def test_columns_that_do_not_fit_are_named() -> None:
    lines = list(table_lines(ROWS, width=31))
    assert lines[-1] == " (not shown: late, from)"
    assert max(map(len, lines)) <= 31


def test_json_has_no_nan_and_frames_have_columns() -> None:
    answer = result(data={"file": "run.h5", "cv": float("nan")}).to_dict()
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer["tables"]["stages"][1]["late"] is None
    assert answer["tables"]["made"] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert answer["data"] == {"file": "run.h5", "cv": None}
    frame = result().frame("stages")
    assert list(frame.columns) == list(ROWS[0])
    assert result().frame("made")["rank"].tolist() == [0, 1, 2]
    with pytest.raises(KeyError):
        result().frame("nothing")


def test_hostile_texts_stay_text() -> None:
    hostile = Result(
        verb="x",
        head="\x1b[31m<b>run</b>",
        tables={"t": [{"name": "a\x1b]0;x\x07<script>", "layer": 1}]},
        screen=("t",),
    )
    shown = "".join(hostile.lines(("t",), width=80))
    assert "\x1b" not in shown
    with Console(width=80, file=StringIO()) as console:
        console.print(Result(verb="x", head="[/x] [link=x]"))
    assert console.file.getvalue() == "[/x] [link=x]\n"  # type: ignore[attr-defined]
    html = hostile._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html


def test_formats_are_known_and_headings_fit() -> None:
    for name, column in COLUMNS.items():
        assert column.dtype in ("int64", "float64", "str", "bool"), name
        assert column.meaning, name
        if column.format not in QUANTITIES:
            assert cell_text(1, column.format), name
        assert "|" not in column.meaning, name
