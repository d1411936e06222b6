"""benchmarks/fabric.sh: no replay beats the bound of the links it runs over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "fabric.sh"
sys.path.append(str(ROOT / "benchmarks"))

from fabric import bounds_s  # noqa: E402
from rate_limited import hosts  # noqa: E402

from moetraffic.fabric import load_fabric  # noqa: E402
from moetraffic.replay.results.bound import busiest_s  # noqa: E402


def namespaces() -> set[str]:
    listed = ["ip", "netns", "list"]
    said = subprocess.run(listed, capture_output=True, text=True, check=True)
    return {line.split()[0] for line in said.stdout.splitlines() if line}


@pytest.mark.parametrize("share", [1, 4])
def test_the_campaign_divides_by_the_bounds_of_a_replay(
    share: int, tmp_path: Path
) -> None:
    cells = np.random.default_rng().integers(0, 10**6, (20, 4, 4))
    cells *= ~np.eye(4, dtype=bool)
    for links, own in (
        ({"topology": "single"}, bounds_s(cells, 50)),
        (
            {"topology": "leaf-spine", "leaves": 2, "spines": 1}
            | {"oversubscription": share},
            bounds_s(cells, 50, 100 / share),
        ),
    ):
        path = tmp_path / "network.json"
        path.write_text(json.dumps({"capacity": "50Mbps", **links}))
        network = load_fabric(str(path), 4)
        expected = busiest_s(network, np.arange(4), cells)
        np.testing.assert_allclose(own, expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_times_stay_above_the_bound_and_nothing_is_left(tmp_path: Path) -> None:
    try:
        with hosts(2):
            pass
    except OSError as error:
        pytest.skip(f"no network namespaces here: {error}")
    before, results = namespaces(), tmp_path / "rows.json"
    asked = ["--rates", "100,200", "--oversubscription", "4", "--json", str(results)]
    subprocess.run(
        [SCRIPT, *asked],
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=850,
        check=True,
    )
    rows = json.loads(results.read_text())["rows"]
    assert namespaces() <= before
    backends = ["gloo", "gloo-duplex", "sockets-gloo", "sockets"]
    assert [r["backend"] for r in rows] == [*backends, *backends, "gloo", "gloo"]
    replays = [r for r in rows if not r["backend"].startswith("sockets")]
    assert all(r["verified"] == "full" for r in replays)
    # the same bytes were sent at one switch, and no link gave more than it has
    assert len({r["network_bytes"] for r in replays[:4]}) == 1
    assert all(r["ratio"] > 1 for r in rows)
    slow, fast = rows[:4], rows[4:8]
    for one in slow:
        assert one["bound_s"] == pytest.approx(slow[0]["bound_s"], rel=1e-6)
    assert slow[0]["bound_s"] == pytest.approx(2 * fast[0]["bound_s"], rel=1e-6)
    # headers and acknowledgments: 66 bytes of 1514, and of two segments
    assert all(1.045 < r["wire_ratio"] < 1.08 for r in (*slow[2:], *fast[2:]))
    for racks, switch in zip(replays[4:], (slow[0], fast[0]), strict=True):
        each = [r["bound_s"] / r["network_bytes"] for r in (racks, switch)]
        assert each[0] > each[1]
