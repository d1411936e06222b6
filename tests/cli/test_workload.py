"""Options that describe a workload, as they reach the workload."""

from __future__ import annotations

import re

import pytest

from moetraffic.cli import main
from moetraffic.cli.workload import describe, parse_options
from moetraffic.errors import LayoutError
from moetraffic.patterns import ROUTERS


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
