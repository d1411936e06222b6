from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moetraffic.errors import LayoutError
from moetraffic.gating import ROUTERS, SwitchRouter, TopKRouter, build
from moetraffic.patterns import Gating
from moetraffic.patterns.workload import ROUTERS as NAMES


def test_every_router_that_a_workload_may_name_is_built_in() -> None:
    assert set(ROUTERS) == set(NAMES)


def test_build_hands_on_the_gating() -> None:
    router = build(Gating(k=3, dispatch="padded", capacity_factor=2.0), 8, 4)
    assert isinstance(router, TopKRouter)
    assert (router.k, router.capacity_factor, router.renormalise) == (3, 2.0, True)
    switch = build(Gating(router="switch", k=1, dispatch="dropless"), 8, 4)
    assert isinstance(switch, SwitchRouter)
    assert switch.capacity_factor is None


def test_an_unknown_router_is_refused() -> None:
    with pytest.raises(LayoutError, match="one of switch, topk, not 'oracle'"):
        build(Gating(router="oracle"), 8, 4)


def test_an_installed_package_may_bring_a_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first_come.py").write_text(
        "from moetraffic.gating import TopKRouter\n"
        "def router(gating, hidden, experts):\n"
        "    return TopKRouter(hidden, experts, k=gating.k, renormalise=False)\n"
    )
    info = tmp_path / "first_come-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: first_come\n")
    (info / "entry_points.txt").write_text(
        "[moetraffic.routers]\nfirst_come = first_come:router\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    router = build(Gating(router="first_come", k=2), 8, 4)
    assert isinstance(router, TopKRouter)
    assert not router.renormalise
    assert router(torch.randn(5, 8)).demand().sum() == 10
    with pytest.raises(LayoutError, match="first_come, switch, topk, not 'other'"):
        build(Gating(router="other"), 8, 4)
