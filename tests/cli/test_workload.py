"""Options that describe a workload, as they reach the workload."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from moetraffic.cli import main
from moetraffic.cli.app import app
from moetraffic.cli.workload import WORKLOAD, capture_command, describe, parse_options
from moetraffic.errors import LayoutError
from moetraffic.patterns import ROUTERS, Workload


def test_a_router_brings_what_it_has_one_value_of() -> None:
    assert describe(4, {}).gating.k == 2
    assert describe(4, {"router": "switch"}).gating.k == 1
    fairscale = describe(4, {"router": "fairscale"}).gating
    assert (fairscale.k, fairscale.dispatch) == (2, "padded")
    assert fairscale.capacity_factor == 1.0
    with pytest.raises(LayoutError, match="set --dispatch padded"):
        describe(4, {"router": "fairscale", "dispatch": "dropless"})


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_is_ready_by_its_name_alone(router: str) -> None:
    assert describe(4, {"router": router}).gating.router == router


def test_router_options_are_values_by_their_looks() -> None:
    texts = ["groups=4", "scale=2.5", "renormalize=false", "score=softmax", "rate=1e-3"]
    found = parse_options(texts)
    assert found == {
        "groups": 4,
        "scale": 2.5,
        "renormalize": False,
        "score": "softmax",
        "rate": 1e-3,
    }
    assert [type(v) for v in found.values()] == [int, float, bool, str, float]
    chosen = {"router": "deepseek", "options": ["groups=4", "top_groups=2"]}
    assert describe(4, chosen).gating.options == {"groups": 4, "top_groups": 2}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["groups"], "is name=value, not 'groups'"),
        (["=4"], "is name=value, not '=4'"),
        (["groups="], "is name=value, not 'groups='"),
        (["groups=2", "groups=4"], "given once, but groups is 2 and 4"),
        (["teams=2"], "not 'teams'"),
        (["groups=two"], "groups is a whole number of at least 1, but is 'two'"),
    ],
)
def test_other_router_options_get_one_sentence(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    words = [part for option in options for part in ("--router-option", option)]
    assert main(["capture", "--router", "deepseek", *words]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert said in error
    assert error.count("\n") == 1


def test_help_names_every_router_and_its_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["capture", "--help"]) == 0
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    for spec in ROUTERS.values():
        assert {spec.name, *(o.name for o in spec.options)} <= words
    assert {"--router-option", "--balance-scope"} <= words


def read_back(command: str | None) -> Workload:
    """The workload of a capture command line."""
    assert command is not None
    _, verb, *words = shlex.split(command)
    parsed = get_command(app).commands[verb].make_context(verb, words)  # type: ignore[attr-defined]
    fields = {made.name: field for field, made in WORKLOAD.items()}
    given = {n: v for n, v in parsed.params.items() if v not in ((), [])}
    named = {fields[n]: v for n, v in given.items() if n in fields}
    own = {name: parsed.params[name] for name in ("virtual", "until_steady")}
    return describe(parsed.params["nproc"], named | own)


@given(
    ranks=st.sampled_from([1, 2, 8]),
    model=st.sampled_from([None, "tiny-deepseek", "tiny-switch", "gpt-moe-760m"]),
    router=st.sampled_from(sorted(ROUTERS)),
    layers=st.sampled_from([None, 2, 4]),
    hidden=st.sampled_from([None, 32, 96]),
    balance=st.sampled_from([None, 0.0, 0.013]),
    seed=st.sampled_from([None, 0, 7]),
    corpus=st.sampled_from([None, "random", "a folder/*.txt"]),
    recompute=st.sampled_from([None, "none", "full"]),
    virtual=st.booleans(),
)
def test_the_capture_command_of_a_workload_makes_the_same_workload(
    ranks: int, **chosen: Any
) -> None:
    try:
        made = describe(ranks, chosen)
    except LayoutError:
        return
    assert read_back(capture_command(made, "run.h5")) == made
    told = Workload.from_json(made.to_json())
    assert read_back(capture_command(told, "run.h5")) == made


def test_the_capture_command_of_another_size_changes_that_alone() -> None:
    made = describe(8, {"hidden": 32, "ep": 4, "experts": 8, "virtual": True})
    more = read_back(capture_command(made, "run.h5", nproc=16, experts=32))
    assert more == describe(16, {"hidden": 32, "experts": 32, "virtual": True})
    with pytest.raises(LayoutError, match="experts"):
        capture_command(made, "run.h5", experts=3, nproc=2)


def test_a_workload_that_no_option_describes_has_no_capture_command() -> None:
    made = describe(4, {})
    training = replace(made.training, weight_decay=0.2)
    assert capture_command(replace(made, training=training), "run.h5") is None
    model = replace(made.model, name="a model of mine")
    assert capture_command(replace(made, model=model), "run.h5") is None
