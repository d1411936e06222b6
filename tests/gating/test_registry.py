from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
import torch

from moetraffic.errors import LayoutError
from moetraffic.gating import (
    DeepSeekRouter,
    FairscaleTop2Router,
    HashRouter,
    Seeded,
    SwitchRouter,
    TopKRouter,
    build,
)
from moetraffic.patterns import ROUTERS as SPECS
from moetraffic.patterns import Gating, Workload
from moetraffic.workload.routing import known_routers


def gating(name: str) -> Gating:
    spec = SPECS[name]
    return Gating(router=name, k=spec.k or 2, dispatch=spec.dispatch[0])


@pytest.mark.parametrize("name", SPECS)
def test_the_table_says_what_the_router_takes(name: str) -> None:
    router = build(gating(name), 8, 4)
    taken = inspect.signature(type(router).__init__).parameters
    common = {"self", "hidden", "experts", "k", "capacity_factor"}
    own = {n: p.default for n, p in taken.items() if n not in common}
    assert own == {o.name: o.default for o in SPECS[name].options}
    for option in SPECS[name].options:
        assert option.default is None or option.accepts(option.default), option
    assert isinstance(router, Seeded) == ("seed" in own)
    assert any(p.shape == (4, 8) for p in router.parameters()) == SPECS[name].gate
    assert ("k" in taken) == (SPECS[name].k is None)


@pytest.mark.parametrize("name", SPECS)
def test_only_what_needs_ids_asks_for_them(name: str) -> None:
    router, x = build(gating(name), 8, 4), torch.randn(8, 8)
    if SPECS[name].needs_ids:
        with pytest.raises(LayoutError, match="the model gives none"):
            router(x)
    else:
        assert router(x).tokens == 8
    assert router(x, ids=torch.arange(8)).tokens == 8


def test_build_hands_on_the_gating() -> None:
    router = build(Gating(k=3, dispatch="padded", capacity_factor=2.0), 8, 4)
    assert isinstance(router, TopKRouter)
    assert (router.k, router.capacity_factor, router.renormalize) == (3, 2.0, True)
    switch = build(
        Gating(router="switch", k=1, dispatch="dropless", options={"jitter": 0.1}), 8, 4
    )
    assert isinstance(switch, SwitchRouter)
    assert (switch.capacity_factor, switch.jitter) == (None, 0.1)
    deep = build(Gating(router="deepseek", options={"groups": 2, "scale": 2.5}), 8, 4)
    assert isinstance(deep, DeepSeekRouter)
    assert (deep.groups, deep.scale, deep.score) == (2, 2.5, "sigmoid")
    assert isinstance(build(gating("fairscale"), 8, 4), FairscaleTop2Router)


def test_build_tells_a_seeded_router_its_seed_and_layer() -> None:
    hashing = Gating(router="hash", k=1, options={"seed": 5})
    router = build(hashing, 8, 4, seed=7, layer=3)
    assert isinstance(router, HashRouter)
    assert router.key == (5, 7, 3)


def test_an_unknown_router_or_option_is_refused() -> None:
    with pytest.raises(LayoutError, match="switch, topk, not 'oracle'"):
        build(Gating(router="oracle"), 8, 4)
    with pytest.raises(LayoutError, match="softmax is one of before, after, but is 1"):
        build(Gating(options={"softmax": 1}), 8, 4)


def test_an_installed_package_may_bring_a_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first_come.py").write_text(
        "from moetraffic.gating import TopKRouter\n"
        "def router(gating, hidden, experts):\n"
        "    own = gating.options.get('renormalize', False)\n"
        "    return TopKRouter(hidden, experts, k=gating.k, renormalize=own)\n"
    )
    info = tmp_path / "first_come-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: first_come\n")
    (info / "entry_points.txt").write_text(
        "[moetraffic.routers]\nfirst_come = first_come:router\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    # a workload may name it before anything of it is imported, with options of its own
    mine = Gating(router="first_come", k=2, options={"renormalize": True})
    assert Workload(gating=mine).gating == mine
    assert "first_come" in known_routers()
    assert "first_come" not in sys.modules
    with pytest.raises(LayoutError, match="k is 9 and there are 8 experts"):
        Workload(gating=Gating(router="first_come", k=9))
    router = build(Gating(router="first_come", k=2), 8, 4)
    assert isinstance(router, TopKRouter)
    assert not router.renormalize
    changed = build(mine, 8, 4)
    assert isinstance(changed, TopKRouter)
    assert changed.renormalize
    assert router(torch.randn(5, 8)).demand().sum() == 10
    with pytest.raises(LayoutError, match=r"first_come, .* topk, not 'other'"):
        build(Gating(router="other"), 8, 4)
