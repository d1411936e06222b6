"""A damaged trace file is refused with its name, or read as if it were whole."""

from __future__ import annotations

import hashlib
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.errors import TraceError
from moetraffic.trace import Trace
from moetraffic.trace.choices import expert_mask
from moetraffic.trace.model import ROUTING, RUN, Occurrences, Steps
from moetraffic.trace.panel import ArrayPanel

from .conftest import EXPERTS, make_trace

DEADLINE_S = 10
BLOCK = 512


def every_table() -> Trace:
    """A trace that has a row in every table."""
    trace, rng = make_trace(), np.random.default_rng(1)
    rows, ranks, _ = trace.panels["routing_4x8/demand"].shape
    chosen = rng.integers(-1, EXPERTS, (rows, ranks, 3, 2)).astype(np.int16)
    return trace.replaced(
        sites=[
            replace(site, token_sample=3) if site.operation == ROUTING else site
            for site in trace.sites
        ],
        panels={**trace.panels, "routing_4x8/chosen": ArrayPanel(chosen)},
        runs=np.array([(0, -1, 40, 9, 0, 0, 0, 0), (0, 1, 40, 8, 7, 1, 9, 1)], RUN),
        meta=replace(trace.meta, nodes=("a", "a", "b", "b")),
    )


def contents(path: Path) -> str:
    """Digest of everything that can be read from a trace file."""
    total = hashlib.sha256()

    def add(*values: object) -> None:
        for value in values:
            array = isinstance(value, np.ndarray)
            total.update(value.tobytes() if array else repr(value).encode())

    with Trace.open(path) as trace:
        add(trace.digest, trace.meta, trace.groups, trace.sites)
        add(trace.placements, trace.clocks, trace.runs)
        for table, kind in ((trace.occurrences, Occurrences), (trace.steps, Steps)):
            add(*(getattr(table, field.name) for field in fields(kind)))
        for name, panel in sorted(trace.panels.items()):
            add(name, panel.dtype, panel.shape, panel.read(0, panel.shape[0]))
        for number, site in enumerate(trace.sites):
            calls = np.flatnonzero(trace.occurrences.site == number)
            add(trace.present(calls), *trace.times(calls))
            if site.operation == ROUTING:
                add(trace.demand(calls), expert_mask(trace.chosen(calls), EXPERTS))
            else:
                add((trace.wire if trace.square[number] else trace.volume)(calls))
            if site.phase:
                add(trace.matrix(3, site.layer, site.phase).values)
    return total.hexdigest()


# ---- damages --------------------------------------------------------------------

Damage = Callable[[bytearray, np.random.Generator], None]


def flip_bit(data: bytearray, rng: np.random.Generator) -> None:
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)


def change_byte(data: bytearray, rng: np.random.Generator) -> None:
    data[rng.integers(len(data))] ^= rng.integers(1, 256)


def fill(data: bytearray, rng: np.random.Generator, value: bytes) -> None:
    size = 1 << rng.integers(3, 13)
    start = int(rng.integers(max(1, len(data) - size)))
    data[start : start + size] = value * (min(len(data), start + size) - start)


def zeros(data: bytearray, rng: np.random.Generator) -> None:
    fill(data, rng, b"\0")


def ones(data: bytearray, rng: np.random.Generator) -> None:
    fill(data, rng, b"\xff")


def truncate(data: bytearray, rng: np.random.Generator) -> None:
    del data[rng.integers(len(data)) :]


def swap_blocks(data: bytearray, rng: np.random.Generator) -> None:
    a, b = (BLOCK * rng.choice(len(data) // BLOCK, 2, replace=False)).tolist()
    first, second = data[a : a + BLOCK], data[b : b + BLOCK]
    data[a : a + BLOCK], data[b : b + BLOCK] = second, first


DAMAGES: tuple[Damage, ...] = (
    *(flip_bit, change_byte, zeros, ones, truncate, swap_blocks),
)


# ---- judgment -------------------------------------------------------------------


def judged(path: Path, expected: str) -> str:
    """Read a file in a process of its own: "equal", "refused", or what is wrong."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(DEADLINE_S)
        try:
            found = "equal" if contents(path) == expected else "other contents"
        except TraceError as error:
            found = "refused" if str(path) in str(error) else f"unnamed: {error}"
        except BaseException as error:
            found = repr(error)
        os.write(writer, found.encode()[:2000])
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        found = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return found


def campaign(folder: Path, first: int, count: int) -> Counter[tuple[str, str]]:
    """Count the judgments of damaged files by kind of damage."""
    whole, path = folder / "whole.h5", folder / "damaged.h5"
    every_table().save(whole)
    data, expected = whole.read_bytes(), contents(whole)
    found: Counter[tuple[str, str]] = Counter()
    for number in range(first, first + count):
        rng, damage = np.random.default_rng(number), DAMAGES[number % len(DAMAGES)]
        changed = bytearray(data)
        damage(changed, rng)
        path.write_bytes(changed)
        found[damage.__name__, judged(path, expected)] += 1
    return found


@pytest.mark.parametrize(
    "count",
    [60, pytest.param(1500, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_damage_is_an_error_or_changes_nothing(count: int, tmp_path: Path) -> None:
    found = campaign(tmp_path, 0, count)
    wrong = {one: n for one, n in found.items() if one[1] not in ("equal", "refused")}
    assert not wrong
    assert sum(n for one, n in found.items() if one[1] == "refused") > count / 2
