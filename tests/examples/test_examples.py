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
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moetraffic.trace import ALL_TO_ALL, ROUTING, Trace

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
SAID = re.compile(
    r"(\d+) all-to-alls of (\d+) ranks, forward and backward "
    r"\((\d+) of them uneven\), and (\d+) routings: captured as sent"
)
# example: package, extra, all-to-alls a layer and step, whether splits vary
CASES = {
    "fairscale": ("fairscale", "test", 4, False),
    "transformers": ("transformers", "test", 5, True),
    "megatron": ("megatron.core", "examples-megatron", 6, True),
    "deepspeed": ("deepspeed", "examples-deepspeed", 4, False),
    "torchtitan": ("torchtitan", "examples-torchtitan", 5, True),
}
RANKS, STEPS, LAYERS = 2, 4, 2


def installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module")
def played(once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The folder in which the examples ran whose frameworks are installed."""

    def make(folder: Path) -> None:
        here = [name for name, (package, *_) in CASES.items() if installed(package)]
        subprocess.run(
            [
                *(sys.executable, HERE / "play.py", folder, str(RANKS)),
                *(EXAMPLES / f"{name}_moe.py" for name in here),
            ],
            timeout=230,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,  # a test finds what its example did not say
        )

    return once("examples", make)


@pytest.mark.parametrize("name", CASES)
def test_captured_is_what_the_framework_sent(name: str, played: Path) -> None:
    package, extra, exchanges, varies = CASES[name]
    if not installed(package):
        pytest.skip(f"{package} is not installed: pip install 'moetraffic[{extra}]'")
    ranks = [(played / f"{name}_moe-{rank}.txt").read_text() for rank in range(RANKS)]
    said = SAID.search(ranks[0])
    assert said is not None, "\n".join(ranks)[-4000:]
    sent, among, uneven, routed = map(int, said.groups())
    # the gradient of the first layer's dispatch is sent too: the embedding learns
    assert sent == exchanges * LAYERS * STEPS * RANKS
    assert (among, routed) == (RANKS, LAYERS * STEPS * RANKS)
    assert (uneven > 0) == varies
    with Trace.open(played / f"{name}_moe.h5") as trace:
        assert len(trace.iterations) == STEPS
        for layer in range(LAYERS):
            (demand,) = trace.demand(
                trace.find(operation=ROUTING, layer=layer, iterations=range(1))
            )
            assert demand.sum() > 0
        wire = trace.find(operation=ALL_TO_ALL)
        layers = {trace.sites[s].layer for s in np.unique(trace.occurrences.site[wire])}
        assert set(range(LAYERS)) <= layers
