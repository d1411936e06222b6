"""Layouts that published trainings chose, ranked by the time model among all that fit.

The search is over every factorization of the same GPUs with the same batch, under what
the source fixed: recomputation, storage, software.  The predicted regret of a published
layout is its estimated time over that of the fastest one, less 1; beside it the regret
of the median layout that fits, which is what a choice at random gives.

References
----------
Narayanan et al., SC'21, arXiv 2104.04473, table 1; the others in
``moetraffic/data/published_layouts.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.data import published
from moetraffic.patterns import preset
from moetraffic.patterns.layouts.parallelism import RECOMPUTE
from moetraffic.patterns.time_model import (
    A100,
    GPUS,
    MODEL_ERROR,
    Search,
    model_operations,
    search,
)
from moetraffic.tables import Table

from .measured_times import NICS, SELENE, gpt, nodes
from .study import Study, compared, rounded

STATED = ("tp", "pp", "cp", "ep", "virtual", "micro_batch")
"""Fields of a published layout, if its source states them."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A published layout and the layouts that it was chosen from."""

    name: str
    layout: dict[str, int]  # of STATED
    found: Search
    memory_bytes: float  # of a GPU
    time: float  # published, s

    @property
    def same(self) -> Bool:
        """``[n]`` of all that can exist: those that have the stated fields."""
        config = self.found.estimate.config
        same = np.ones(config.shape, bool)
        for name, value in self.layout.items():
            same &= np.broadcast_to(getattr(config, name), config.shape) == value
        return same

    @property
    def room(self) -> float:
        """Bytes that a layout may need: what a GPU has, or what was run needs here."""
        needed = self.found.estimate.memory.total
        return float(max(needed[self.same].min(), self.memory_bytes))

    @cached_property
    def order(self) -> Int64:
        """Those that fit, the fastest first."""
        estimate = self.found.estimate
        fits = np.flatnonzero(estimate.memory.total <= self.room)
        return fits[np.argsort(estimate.iteration[fits], kind="stable")]

    @property
    def times(self) -> Float64:
        """``[n]`` s of those that fit, the fastest first."""
        return np.asarray(self.found.estimate.iteration[self.order])

    @property
    def place(self) -> int:
        """Of the published layout in ``order``, from 0: the fastest of those that have
        the stated fields."""
        return int(np.flatnonzero(self.same[self.order])[0])


def sc21(row: Mapping[str, str]) -> Chosen:
    """Return a row of table 1 of SC'21: full recomputation, no ZeRO, fp16."""
    number = {name: float(row[name]) for name in row if name != "recompute"}
    found = search(
        gpt(row),
        nodes(A100, NICS["selene"], reached=SELENE),
        gpus=int(number["gpus"]),
        global_batch=int(number["batch"]),
        among={
            "zero": (0,),
            "recompute": (RECOMPUTE.index("full"),),
            "sequence_parallel": (0,),
        },
        scatter_gather=True,
        dtype="float16",
    )
    names = ("t", "p", "d", "v_interleave", "microbatch")
    fields = ("tp", "pp", "dp", "virtual", "micro_batch")
    layout = {field: int(row[name]) for field, name in zip(fields, names, strict=True)}
    return Chosen(
        name=f"SC'21 {row['params_B']}B on {row['gpus']}",
        layout=layout,
        found=found,
        memory_bytes=A100.memory_bytes,
        time=number["iter_time_s_derived"],
    )


def modern(row: Mapping[str, str]) -> Chosen:
    """Return a row of ``published_layouts.csv``, with fused attention."""
    known = preset(row["model"])
    sparse = bool(known.model.experts)
    gpu = replace(GPUS[row["gpu"]], inside_bytes_s=float(row["inside_gbs"]) * 1e9)
    overlap = dict.fromkeys(row["overlap"].split(), 1.0)
    gpus, batch = int(row["gpus"]), int(row["batch"])
    given = zip(("t", "p", "cp", "ep", "v", "microbatch"), STATED, strict=True)
    found = search(
        replace(known.model, sequence=int(row["seq"])),
        nodes(gpu, NICS["dgx-h100"], overlap),
        gpus=gpus,
        global_batch=batch,
        among={
            "virtual": (1, 2, 4, 8),
            "zero": (1,),
            "recompute": (RECOMPUTE.index(row["recompute"]),),
            "cp": (1, 2, 4, 8, 16),
        },
        k=known.gating.k,
        schedule=row["schedule"],
        embedding_layers=int(row["ends"]),
        head_layers=int(row["ends"]),
        etp=1 if sparse else 0,
        fused_attention=True,
        fp8=float(row["fp8"]),
        dispatcher="deduplicated" if float(row["node_limit"]) else "plain",
        node_limit=float(row["node_limit"]),
        gpus_per_node=8,
        state_bytes=float(row["state_bytes"]),
    )
    if row["tflops"]:
        work = float(np.ravel(model_operations(found.estimate.config))[0])
        time = work / (gpus * float(row["tflops"]) * 1e12)
    else:
        time = batch * int(row["seq"]) / (gpus * float(row["tokens_s_gpu"]))
    return Chosen(
        name=f"{row['model']} on {gpus}, {int(row['seq']):,} tokens",
        layout={field: int(row[name]) for name, field in given if row[name]},
        found=found,
        memory_bytes=gpu.memory_bytes,
        time=time,
    )


def _words(one: Chosen, place: int) -> str:
    config = one.found.estimate.config
    at = one.order[place]
    names = {"tp": "t", "pp": "p", "dp": "d", "cp": "c", "ep": "e"}
    names = {**names, "virtual": "v", "micro_batch": "b"}
    cells = (
        (short, float(np.broadcast_to(getattr(config, name), config.shape)[at]))
        for name, short in names.items()
    )
    return " ".join(f"{short}{value:g}" for short, value in cells if value > 1)


def _row(one: Chosen) -> tuple[object, ...]:
    times, place = one.times, one.place
    return (
        one.name,
        len(times),
        place + 1,
        *rounded((times[place] / times[0] - 1, np.median(times) / times[0] - 1), 3),
        bool(times[place] <= times[0] * (1 + MODEL_ERROR)),
        _words(one, place),
        _words(one, 0),
        round(one.room / 1e9, 1),
    )


def reproduce() -> Study:
    """Rank published layouts among all that fit."""
    rows = [
        *(sc21(row) for row in published("megatron_sc21_table1")),
        *(modern(row) for row in published("published_layouts")),
    ]
    return Study(
        name="published_layouts",
        title="Published layouts and the fastest ones by the time model",
        source="Narayanan et al., SC'21, table 1; published_layouts.csv has the others",
        tables=(
            Table(
                title="Rank and predicted regret of published layouts",
                columns=(
                    *("model", "that fit", "rank", "regret", "median's regret"),
                    "within the model's error",
                    *("its layout", "fastest layout", "GB allowed"),
                ),
                rows=[_row(one) for one in rows],
            ),
            Table(
                title="Iteration times of published layouts",
                columns=("model", "published s", "ours s", "error"),
                rows=[
                    (one.name, *compared(one.time, one.times[one.place], 2, 3))
                    for one in rows
                ],
            ),
        ),
        not_reproducible=(
            "why a layout was chosen, because the sources do not state what was tried",
        ),
        notes=(
            "letters: t, p, d, c, e ranks of tensor, pipeline, data, context and "
            "expert parallelism, v virtual stages, b micro-batch; 1 is left out",
            f"the model's error is {MODEL_ERROR:.0%}: layouts within it of the fastest "
            "cannot be ranked",
            "regret: estimated time over the fastest one's, less 1; the median's is "
            "that of a layout drawn at random among those that fit",
            "GB allowed: a GPU's memory, or what the published layout needs by the "
            "memory model, if that is more: it was run",
            "where a source states no micro-batch or virtual stages, the fastest are "
            "taken",
        ),
    )
