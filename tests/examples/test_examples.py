"""The examples for the frameworks: what they capture is what the frameworks sent.

Each example compares the trace with the framework's own splits and counts and fails if
anything differs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
SAID = re.compile(
    r"(\d+) all-to-alls of (\d+) ranks, forward and backward "
    r"\((\d+) of them uneven\), and (\d+) routings: captured as sent"
)
# example: package, extra, ranks, all-to-alls a layer and step, whether splits vary
CASES = {
    "fairscale": ("fairscale", "test", 2, 4, False),
    "transformers": ("transformers", "test", 2, 5, True),
    "megatron": ("megatron.core", "examples-megatron", 2, 6, True),
    "deepspeed": ("deepspeed", "examples-deepspeed", 2, 4, False),
    "torchtitan": ("torchtitan", "examples-torchtitan", 2, 5, True),
}
STEPS, LAYERS = 4, 2


def installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("name", CASES)
def test_captured_is_what_the_framework_sent(name: str, tmp_path: Path) -> None:
    package, extra, ranks, exchanges, varies = CASES[name]
    if not installed(package):
        pytest.skip(f"{package} is not installed: pip install 'moetraffic[{extra}]'")
    ran = subprocess.run(
        [
            *(sys.executable, HERE / "play.py"),
            *(EXAMPLES / f"{name}_moe.py", str(ranks), tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    said = SAID.search(ran.stdout)
    assert said is not None, ran.stdout
    sent, among, uneven, routed = map(int, said.groups())
    # the gradient of the first layer's dispatch is sent too: the embedding learns
    assert sent == exchanges * LAYERS * STEPS * ranks
    assert (among, routed) == (ranks, LAYERS * STEPS * ranks)
    assert (uneven > 0) == varies
    with Trace.open(tmp_path / f"{name}_moe.h5") as trace:
        assert len(trace.iterations) == STEPS
        for layer in range(LAYERS):
            (demand,) = trace.demand(
                trace.find(operation=ROUTING, layer=layer, iterations=range(1))
            )
            assert demand.sum() > 0
        wire = trace.find(operation=ALL_TO_ALL)
        layers = {trace.sites[s].layer for s in np.unique(trace.occurrences.site[wire])}
        assert set(range(LAYERS)) <= layers
