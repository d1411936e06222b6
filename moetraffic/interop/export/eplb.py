"""Export expert loads for DeepSeek's expert-parallelism load balancer (EPLB).

``rebalance_experts(weight, ...)`` takes ``[layers, experts]`` load (deepseek-ai/EPLB
``eplb.py``) and converts it to float32.  Written as .npy without pickled objects:
``torch.from_numpy(numpy.load("load.npy"))``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.trace import ROUTING, Trace

from .call_selection import find
from .exporter import Exporter, ExportOptions

EXACT = 2**24  # up to here, float32 represents all integers exactly
AT_ONCE = 256


def write(trace: Trace, path: Path, options: ExportOptions) -> list[str]:
    """Write expert loads ``[layers, experts]`` int64, summed over all iterations."""
    found = trace.complete(find(trace, options, operation=ROUTING, direction="forward"))
    sites = [trace.sites[s] for s in np.unique(trace.occurrences.site[found])]
    experts = {s.experts for s in sites}
    layers = sorted({s.layer for s in sites})
    if len(experts) != 1:
        raise TraceError(
            "a load tensor has a column an expert, alike in all layers, but "
            f"{trace.name} shows layers of {sorted(experts) or 'no'} experts: capture "
            "the router, or choose a layer"
        )
    load = np.zeros((len(layers), experts.pop()), np.int64)
    for number, site in enumerate(trace.sites):
        mine = found[trace.occurrences.site[found] == number]
        for begin in range(0, len(mine), AT_ONCE):
            demand = trace.demand(mine[begin : begin + AT_ONCE])
            load[layers.index(site.layer)] += demand.sum(axis=(0, 1), dtype=np.int64)
    with path.open("wb") as file:
        np.save(file, load, allow_pickle=False)
    lost = [
        f"rows are the MoE layers {', '.join(map(str, layers))}, in this order",
        "token copies are summed over ranks, micro-batches and iterations",
    ]
    if int(load.max(initial=0)) > EXACT:
        lost.append(f"EPLB makes them float32, which rounds loads above {EXACT}")
    return lost


EXPORTER = Exporter(
    name="eplb",
    what="token copies of each layer and expert, .npy",
    readers="EPLB's rebalance_experts, vLLM, SGLang",
    limits="float32 there: exact up to 2^24 copies",
    suffix=".npy",
    write=write,
)
