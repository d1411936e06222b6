"""Every published layout that is cited, entered in both verbs from the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import pytest

from moetraffic.cli import main
from moetraffic.data import published
from moetraffic.patterns import preset

Words = dict[str, object]
"""Options of a layout that both verbs have."""


def words(options: Mapping[str, object]) -> list[str]:
    found = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        found += [flag] if value is True else [flag, str(value)]
    return [word for word in found if word]


def given(row: Mapping[str, str], **columns: str) -> Words:
    return {
        option: row[column] for option, column in columns.items() if row.get(column)
    }


def sizes(row: Mapping[str, str]) -> Words:
    """Of a GPT by its sizes: Megatron-LM without sequence parallelism, in fp16."""
    found = given(row, layers="layers", hidden="hidden", heads="heads", tp="t", pp="p")
    replicas = int(row["gpus"]) // int(row["t"]) // int(row["p"])
    virtual = int(row.get("v_interleave") or row.get("v") or 1)
    found |= {"model": "gpt-1.3b", "vocab": row.get("vocab", 51_200)}
    found |= {"sequence": row.get("seq", 2048), "dp": replicas, "recompute": "full"}
    found |= {"virtual_stages": virtual} if virtual > 1 else {}
    zero = row.get("method") == "zero3"
    parts = int(row["t"]) > 1 and int(row["p"]) > 1  # of what stages hand on
    found |= {"zero": 3} if zero else {"scatter_gather": True} if parts else {}
    found["dtype"] = "float16"
    return {**found, "micro_batch": row["microbatch"], "batch": row["batch"]}


def rows() -> Iterator[tuple[str, Words, str, Words]]:
    """Name, options of both verbs, platform, and further ones of ``estimate``."""
    for table in ("megatron_sc21_table1", "megatron_sc21_table2"):
        for row in published(table):
            name = f"{table} {row['params_B']} {row['gpus']}"
            yield name, sizes(row), "dgx-a100", {}
    for row in published("korthikanti22_table5"):
        whole, selective = sizes(row), sizes(row)
        selective |= {"recompute": "selective", "sequence_parallel": True}
        selective.pop("scatter_gather", None)
        for way in (whole, selective):
            yield f"{row['model']} {way['recompute']}", way, "dgx-a100", {}
    for row in published("published_layouts"):
        yield (f"{row['model']} {row['gpus']} {row['seq']}", *modern(row))
    for row in published("megatron_bridge_h100"):
        yield (f"{row['model']} {row['release']}", *bridge(row))


def modern(row: Mapping[str, str]) -> tuple[Words, str, Words]:
    known = preset(row["model"]).model
    found = given(row, model="model", tp="t", pp="p", cp="cp", ep="ep", sequence="seq")
    ranks = int(row["t"]) * int(row["p"]) * int(row["cp"])
    found |= {"dp": int(row["gpus"]) // ranks, "zero": 1, "batch": row["batch"]}
    found |= {"recompute": row["recompute"], "schedule": row["schedule"]}
    found |= {"micro_batch": row["microbatch"] or 1}
    if int(row["t"]) > 1:
        found["sequence_parallel"] = True
    if int(row["v"] or 1) > 1:
        found["virtual_stages"] = row["v"]
    if int(row["node_limit"]):
        found |= {"dispatcher": "deduplicated", "node_limit": row["node_limit"]}
    if known.experts:
        found["etp"] = 1
    more: Words = {"state_bytes": row["state_bytes"], "fused_attention": True}
    more |= {"overlap": row["overlap"].replace(" ", ",")}
    return found, "dgx-h100", more | ({"fp8": True} if int(row["fp8"]) else {})


def bridge(row: Mapping[str, str]) -> tuple[Words, str, Words]:
    known = preset(row["model"]).model
    found = given(row, model="model", tp="t", pp="p", cp="cp", ep="ep", sequence="seq")
    ranks = int(row["t"]) * int(row["p"]) * int(row["cp"])
    found |= {"dp": int(row["gpus"]) // ranks, "batch": row["batch"]}
    found |= {"micro_batch": row["microbatch"], "zero": 3 if int(row["fsdp"]) else 1}
    if int(row["t"]) > 1:
        found["sequence_parallel"] = True
    if int(row["v"]) > 1:
        found["virtual_stages"] = row["v"]
    if known.experts:
        found["etp"] = 1
        if row["dispatch"] == "once a node":
            found["dispatcher"] = "deduplicated"
    return found, "dgx-h100", {"fp8": True, "fused_attention": True}


EVERY = list(rows())
PARTS = {
    **{"TP": ("tp", "ends"), "CP": ("cp",), "PP": ("pp",), "EP": ("ep",)},
    **{"DP": ("dp", "edp"), "EmbTableSync": ("embedding",)},
}
"""By kind of traffic of a pattern, its kinds of an estimate."""

SCALE = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}

SHORT = 2048
"""Ranks times micro-batches up to which a row is short."""


def size(options: Words) -> int:
    ranks = 1
    for axis in ("tp", "pp", "dp", "cp"):
        ranks *= int(str(options.get(axis, 1)))
    return ranks * batches(options)


def batches(options: Words) -> int:
    sequences = int(str(options["dp"])) * int(str(options["micro_batch"]))
    return int(str(options["batch"])) // sequences


@pytest.mark.parametrize(
    ("options", "platform", "more"),
    [
        pytest.param(
            *row[1:],
            id=row[0],
            marks=[] if size(row[1]) <= SHORT else [pytest.mark.slow],
        )
        for row in EVERY
    ],
)
def test_published_layouts_are_entered_and_answered(
    options: Words,
    platform: str,
    more: Words,
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = {name: value for name, value in options.items() if name != "batch"}
    batch: Words = {"global_batch": options["batch"]}
    code = main(["estimate", "--platform", platform, *words({**both, **batch, **more})])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert "T_iter" in told.out
    (line,) = re.findall(r"^Its traffic: moetraffic (.*)", told.out, re.M)
    asked = words({**both, **batch, **more})
    assert main(["estimate", "--platform", platform, *asked, "--json"]) == 0
    sent = json.loads(capsys.readouterr().out)["estimate"]["sent_bytes"]
    code = main([*line.split(), "--only", "traffic"])
    told = capsys.readouterr()
    assert code == 0, told.err
    # bytes are printed with 2 decimals; a pattern rounds what goes to a node to tokens
    rel = 1e-4 if options.get("dispatcher") == "deduplicated" else 1e-9
    for kind, parts in PARTS.items():
        row = re.search(rf"^ {kind} .* ([\d.]+) (\w*B) *$", told.out, re.M)
        unit = SCALE[row[2]] if row else 1.0
        most = float(row[1]) * unit if row else 0.0
        estimated = sum(sent[part] for part in parts)
        assert estimated == pytest.approx(most, rel=rel, abs=0.005 * unit), kind
