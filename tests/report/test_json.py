"""JSON of results has the fields that docs/json.md states, and registered columns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict

from moetraffic.cli import main
from moetraffic.columns import COLUMNS, VERSION
from moetraffic.data import path
from moetraffic.tables import SCHEMA_VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
GOLDEN = str(path("golden.h5"))


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    schema_version: Literal[6]
    verb: str
    head: str
    verdict: list[str]
    notes: list[str]
    data: dict[str, Any]
    tables: dict[str, list[dict[str, bool | int | float | str | list[Any] | None]]]


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", GOLDEN],
        ["analyze", str(path("golden-sampled.h5"))],
        ["compare", GOLDEN, str(path("golden-linked.h5"))],
        ["info", GOLDEN],
    ],
)
def test_a_result_has_the_stated_fields(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--json"]) == 0
    answer = Answer.model_validate_json(capsys.readouterr().out)
    assert answer.verb == arguments[0]
    assert len(answer.verdict) <= 5
    for name, rows in answer.tables.items():
        for row in rows:
            assert list(row) == list(rows[0]), name
            assert {*row} <= {*COLUMNS}, name


def test_the_page_states_each_field_and_the_versions() -> None:
    for name in Answer.model_fields:
        assert f"`{name}`" in PAGE
    assert re.search(rf"`schema_version` \| {VERSION}\b", PAGE)
    assert f"`schema_version` {SCHEMA_VERSION}" in PAGE


@pytest.mark.parametrize(
    "verb", [["info"], ["analyze", "--only", "claims"], ["fabric"]]
)
def test_each_object_begins_with_its_version(
    verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb[0], GOLDEN, *verb[1:], "--json"]) == 0
    assert next(iter(json.loads(capsys.readouterr().out))) == "schema_version"
