"""An anonymous trace has the numbers of the original, and none of its names."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import moetraffic
from moetraffic.cli.app import main
from moetraffic.data import path
from moetraffic.patterns import Training, Workload
from moetraffic.trace import Meta, Source, Trace

TEXTS = [f.name for f in fields(Meta) if f.type == "str"]
WORKLOAD = Workload(training=Training(corpus="/home/alice/private/*.txt", seed=77))
SECRETS = {
    **{name: f"secret {name} of alice@gpu-host-17" for name in TEXTS},
    "torch": "2.6.0a0+secretbuild.nv25",
    "python": "3.11.7-secret-internal",
    "moetraffic": "0.1.0.dev3+gsecret",
    "workload": WORKLOAD.to_json(),
}


def golden(**meta: Any) -> Trace:
    """The golden trace with other texts in its metadata."""
    trace = Trace.open(path("golden-linked.h5"))
    return trace.replaced(meta=replace(trace.meta, **meta))


def named() -> Trace:
    """A trace whose texts name hosts, users, paths and programs."""
    trace = golden(**SECRETS, complete=False, nodes=("gpu-host-17", "gpu-host-18"))
    spoken = ("gradient_sync", "secret_layer_a", "secret_layer_b", "")
    sites = [
        replace(
            site,
            slot=number,
            label=spoken[number % 4],
            module=f"secret.experts.{number}",
            dtype="secret_dtype" if number == 0 else site.dtype,
        )
        for number, site in enumerate(trace.sites)
    ]
    groups = [replace(g, kind="secret-mesh") for g in trace.groups]
    return trace.replaced(sites=sites, groups=groups)


def original_texts(trace: Trace) -> set[str]:
    """All texts of a trace that identify something."""
    meta = trace.meta
    found = {v for v in meta.as_dict().values() if isinstance(v, str)}
    found |= {*meta.nodes, *(g.kind for g in trace.groups)}
    for site in trace.sites:
        found |= {site.label, site.dtype, site.module}
    return {t for t in found if "secret" in t or "alice" in t or "gpu-host" in t}


def test_no_text_of_the_input_is_in_the_output(tmp_path: Path) -> None:
    trace = named()
    secret = original_texts(trace)
    assert len(secret) > len(TEXTS)
    found = moetraffic.anonymize(trace)
    found.trace.save(tmp_path / "shared.h5")
    raw = (tmp_path / "shared.h5").read_bytes()
    for text in secret | {"secret", "alice", "gpu-host", "private", "nv25"}:
        assert text.encode() not in raw, text
    with Trace.open(tmp_path / "shared.h5") as shared:
        assert shared.meta.nodes == ("node0", "node1")
        assert (shared.meta.torch, shared.meta.python) == ("2.6.0", "3.11.7")
        assert {s.label for s in shared.sites} == {
            *("gradient_sync", "label0", "label1", ""),
        }
        modules = [f"module{n}" for n in range(len(shared.sites))]
        assert [s.module for s in shared.sites] == modules
        assert {g.kind for g in shared.groups} == {"group0"}
        workload = json.loads(shared.meta.workload)
        assert workload["training"]["corpus"] == ""
        assert workload["training"]["seed"] == 77
        anonymous = replace(WORKLOAD, training=Training(seed=77))
        assert Workload.from_json(shared.meta.workload) == anonymous
        assert "removed" in shared.meta.missing
        assert "inferred" in shared.meta.schedule
        assert "contradict the routing" in shared.meta.contradiction
    assert "node names: 2, now node0 to node1" in found.removed
    assert "label names: 2, now label0 to label1" in found.removed


@pytest.mark.parametrize("name", ["golden.h5", "golden-linked.h5"])
def test_every_number_is_bit_equal(tmp_path: Path, name: str) -> None:
    with Trace.open(path(name)) as trace:
        trace.save(tmp_path / "same.h5")
        moetraffic.anonymize(trace).trace.save(tmp_path / "shared.h5")
    with h5py.File(tmp_path / "same.h5") as a, h5py.File(tmp_path / "shared.h5") as b:
        names, others = list[str](), list[str]()
        a.visit(names.append)
        b.visit(others.append)
        assert names == others
        for dataset in (name for name in names if "/" in name):
            mine, theirs = a[dataset][...], b[dataset][...]
            if mine.dtype.kind == "S":
                assert mine.shape == theirs.shape
            else:
                assert mine.dtype == theirs.dtype
                assert mine.tobytes() == theirs.tobytes(), dataset
        numbers = {n for n, v in a.attrs.items() if not isinstance(v, bytes)}
        for attribute in numbers:
            ours = np.asarray(a.attrs[attribute])
            assert ours.tobytes() == np.asarray(b.attrs[attribute]).tobytes()
        assert numbers >= {"world", "ep", "k", "experts", "seed", "capacity_factor"}


def test_texts_that_identify_nobody_are_kept() -> None:
    trace = golden(model="tiny, scaled")
    shared = moetraffic.anonymize(trace).trace
    for name in ("origin", "model", "router", "dispatch", "order", "dtype", "created"):
        assert getattr(shared.meta, name) == getattr(trace.meta, name), name
    assert json.loads(shared.meta.workload) == json.loads(trace.meta.workload)
    assert shared.sites == trace.sites
    assert [s.source for s in shared.sites] == [s.source for s in trace.sites]
    assert {s.source for s in shared.sites} == {Source.ANNOTATED, Source.INFERRED}
    assert shared.groups == trace.groups
    assert shared.meta.nodes == ("node0", "node0")  # ranks of one node stay together


def test_it_is_unchanged_the_second_time() -> None:
    once = moetraffic.anonymize(named())
    twice = moetraffic.anonymize(once.trace)
    assert repr(once.trace.meta) == repr(twice.trace.meta)
    assert once.trace.sites == twice.trace.sites


MARK = "\u00a7s3cret"


@settings(max_examples=10)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)),
    st.sampled_from(["{}", '{{"model": {}}}', '{{"{}": 1}}', "[{}]", "{}{{"]),
)
def test_any_text_is_removed(words: list[str], shape: str) -> None:
    texts = [MARK + w for w in [*words, ""]]
    meta = {name: texts[n % len(texts)] for n, name in enumerate(TEXTS)}
    meta["workload"] = shape.replace("{}", json.dumps(texts[0])).replace("{{", "{")
    trace = golden(**meta, nodes=(texts[0], texts[-1]))
    sites = [replace(s, label=texts[n % len(texts)]) for n, s in enumerate(trace.sites)]
    found = moetraffic.anonymize(trace.replaced(sites=sites))
    assert "s3cret" not in repr(found.trace.meta) + repr(found.trace.sites)
    assert not any(MARK in phrase for phrase in found.removed)


def test_the_command_says_what_it_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, shared = tmp_path / "run.h5", tmp_path / "shared.h5"
    named().save(run)
    command = ["export", str(run), "--anonymous", "-o", str(shared)]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "node names: 2, now node0 to node1" in out
    assert "alice" not in out
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*command[:-1], str(run), "--force"]) == 2
    assert "input" in capsys.readouterr().err
    table = tmp_path / "shared.json"
    assert main([*command[:-1], str(table), "--to", "perfetto"]) == 0
    assert "secret" not in table.read_text()
