"""JSON of an analysis has the fields that docs/json.md states, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict

from moetraffic.cli import main
from moetraffic.data import path
from moetraffic.tables import SCHEMA_VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text()


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Line(Strict):
    topic: str
    text: str
    basis: Literal["claims", "figure", "data", "recommendation"]


class Claim(Strict):
    name: str
    about: str
    subject: str
    horizon: int
    outcome: Literal["stated", "no evidence", "not enough data"]
    statement: str
    null: str
    p: float | None
    figure: float | None
    chance: float | None
    unit: str
    measure: str
    low: float | None
    high: float | None
    used: int
    left_out: int
    needs: int
    flags: list[str]
    sentence: str


class Statistics(Strict):
    of: str
    unit: str
    cells: int
    cells_followed: int
    skew: dict[str, dict[str, Any]]
    forecasts: dict[str, Any] | None
    limits: dict[str, Any] | None
    memory: dict[str, Any] | None


class Exchange(Strict):
    layer: int
    group: int
    phase: Literal["dispatch", "combine", "combine_grad", "dispatch_grad"]
    ranks: list[int]
    iterations: list[int]
    iterations_left_out: int
    statistics: dict[Literal["expert_load", "demand", "wire", "received"], Statistics]
    convergence: dict[str, Any] | None
    complexity: dict[str, Any] | None
    network: dict[str, Any] | None
    experts: dict[str, Any] | None
    figures: dict[str, Any] | None


class Rhythm(Strict):
    about: str
    found: list[dict[str, Any]]
    notes: list[str]


class Leads(Strict):
    iteration_s: float | None
    offset_s: dict[str, float | None]


class Occupation(Strict):
    shares_by_rank: list[dict[str, float | None]]
    collective_fraction: list[float | None]
    transfer_fraction: list[float | None]
    hidden_fraction: list[float | None]
    inferred_from_calls: bool


class Analysis(Strict):
    schema_version: Literal[5]
    file: str
    summary: list[Line]
    claims: list[Claim]
    exchanges: list[Exchange]
    rhythm: Rhythm
    leads: Leads
    within_iteration: list[dict[str, Any]]
    occupation: Occupation | None
    notes: list[str]
    omitted_calls: str
    unnamed_exchanges: int


@pytest.mark.parametrize("trace", ["golden.h5", "golden-sampled.h5"])
def test_an_analysis_has_the_stated_fields(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(path(trace)), "--json"]) == 0
    found = Analysis.model_validate_json(capsys.readouterr().out)
    assert found.exchanges
    assert len(found.summary) <= 8


def test_the_page_states_each_field_and_the_version() -> None:
    for part in (Analysis, Line, Claim, Exchange, Statistics, Rhythm, Occupation):
        for name in part.model_fields:
            assert f"`{name}`" in PAGE, f"{part.__name__}.{name}"
    assert re.search(rf"version is {SCHEMA_VERSION}\b", PAGE)


@pytest.mark.parametrize(
    "verb", [["info"], ["analyze", "--only", "claims"], ["fabric"]]
)
def test_each_object_begins_with_its_version(
    verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb[0], str(path("golden.h5")), *verb[1:], "--json"]) == 0
    assert next(iter(json.loads(capsys.readouterr().out))) == "schema_version"
