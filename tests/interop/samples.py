"""Small sound files of other tools, and any value in any place of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

VALUES: list[Any] = [
    *(None, True, -1, 0, 3, 2**31, 2**62, 2**70, -(2**63), 1e300, 0.5),
    *(
        "",
        "x",
        "[",
        "[1, ...]",
        "[0, 0]",
        "[1, 2, 3, 4, 5, 6, 7, 8, 9]",
        "[99999999999]",
    ),
    *([], [[]], [1], [[1, 2], [3]], {}, {"a": 1}, "all_to_allv", "Float", "\ud800"),
]


def routed_table(folder: Path, counts: np.ndarray, layer: int = 0) -> Path:
    """Write token copies ``[T, W, E]`` of a layer as CSV."""
    path = folder / f"routed-{layer}.csv"
    lines = [
        f"{i},{layer},{r},{e},{counts[i, r, e]}" for i, r, e in np.ndindex(counts.shape)
    ]
    path.write_text("\n".join(["iteration,layer,rank,expert,tokens", *lines]) + "\n")
    return path


def everywhere(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    items: Iterable[Any] = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield from everywhere(inner, (*at, key))


def mutated(value: Any, seed: np.random.Generator) -> Any:
    """The value with one to three parts replaced or gone."""
    value = copy.deepcopy(value)
    for _ in range(seed.integers(1, 4)):
        places = [p for p in everywhere(value) if p]
        if not places:
            break
        *way, last = places[seed.integers(len(places))]
        holder = value
        for key in way:
            holder = holder[key]
        if seed.random() < 0.2:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(VALUES[seed.integers(len(VALUES))])
    return value


PROFILE = {
    "distributedInfo": {
        **{"rank": 0, "world_size": 2, "backend": "nccl", "pg_count": 1},
        "pg_config": [{"pg_name": "0", "ranks": [0, 1], "group_size": 2}],
    },
    "baseTimeNanoseconds": 10**18,
    "traceEvents": [
        {"ph": "X", "name": name, "cat": "cpu_op", "tid": 1, "ts": ts, "dur": dur}
        | {"args": args}
        for name, ts, dur, args in (
            ("ProfilerStep#4", 1.0, 50.0, {}),
            ("MoE", 2.0, 20.0, {"Sequence number": 3, "Fwd thread id": 0}),
            (
                *("c10d::alltoall_base_", 3.0, 9.0),
                {
                    "Input Dims": [[4, 2], [3, 2], [], [], []],
                    "Input type": ["float", "float", "", "ScalarList", "ScalarList"],
                    "Concrete Inputs": ["", "", "", "[1, 3]", "[1, 2]"],
                    "Record function id": 5,
                },
            ),
            (
                *("record_param_comms", 4.0, 2.0),
                {
                    **{"Collective name": "all_to_allv", "dtype": "Float", "Seq": 2},
                    **{"In msg nelems": 6, "Out msg nelems": 8, "Group size": 2},
                    **{"In split size": "[1, 2]", "Out split size": "[1, 3]"},
                    **{"Process Group Name": "0", "Process Group Ranks": "[0, 1]"},
                },
            ),
            ("gloo:all_to_all", 5.0, 1.0, {"Record function id": 6}),
            ("c10d::send", 30.0, 9.0, {"Concrete Inputs": ["", "", "1", "0"]}),
        )
    ],
}
OBSERVED = {
    "schema": "1.1.1",
    "nodes": [
        {
            **{"id": 2, "ctrl_deps": 1, "name": "## process_group:init ##"},
            "inputs": {"values": ['[{"pg_name": "0", "ranks": [], "group_size": 2}]']},
            "attrs": [],
        },
        {
            **{"id": 4, "ctrl_deps": 3, "name": "c10d::alltoall_base_"},
            "inputs": {
                "values": [
                    *([1, 2, 0, 8, 4, "cpu"], [1, 2, 0, 6, 4, "cpu"], "<Object>"),
                    *([1, 3], [1, 2]),
                ],
                "shapes": [[4, 2], [3, 2], [], [], []],
                "types": ["Tensor(float)", "Tensor(float)", "Object", "", ""],
            },
            "attrs": [{"name": "seq_id", "value": 3}, {"name": "tid", "value": 1}],
        },
        {"id": 3, "ctrl_deps": 1, "name": "MoE", "attrs": []},
        {
            **{"id": 6, "parent": 1, "name": "record_param_comms", "seq_id": 1},
            "inputs": [[[1, 2, 0, 6, 4, "cpu"]], 5, 0, "all_to_all", [1, 2], [1, 3], 2],
            "input_shapes": [[[3, 2]], [], [], [], [], [], []],
            "input_types": ["GenericList[Tensor(float)]", "Int", "Int", "String"],
        },
    ],
}
ROUTED = {
    **{"step": 0, "block": "decoder", "layer": 1, "rank": 0, "num_tokens": 2},
    **{"topk": 2, "top_indices": [[0, 1], [2, 3]], "stage": "pre_dispatch"},
}
INSPECTED = {
    "header": {"id": "0xa", "rank": 0, "n_ranks": 2},
    "metadata": {"hostname": "h", "pid": 3},
    "p2p_perf": {
        **{"p2p": "Send", "p2p_peer": 1, "p2p_msg_size_bytes": 9000, "p2p_sn": 1},
        "event_trace_ts": {"p2p_start_ts": 5, "kernel_events": [{}]},
    },
}
