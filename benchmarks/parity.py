#!/usr/bin/env python3
"""Every figure that a user gets, by name, and a comparison of two such files.

``record`` computes the figures of fixed inputs with the code of this checkout;
``compare`` lists the differences of two files with their size, and exits with 1 if any
is not permitted.  A change that is to keep all figures is checked by::

    benchmarks/parity.py record before.json.gz
    benchmarks/parity.py record after.json.gz
    benchmarks/parity.py compare before.json.gz after.json.gz

``benchmarks/results/parity.json.gz`` holds the figures of the commit before the
rebuild.  A missing key is a difference, and so is a new one.  Permitted differences and
their reasons stand in ``benchmarks/parity_changes.toml``.

A key is ``INPUT/ROOM/...``, such as ``run-top2-balanced/analyze/layer1/wire/cv/mean``.
Keys and values must outlive the code that computes them: ``parity_rooms.py`` maps the
present API to plain keys.  When an API changes, rewrite the section of its room there;
keys, values and inputs stay.  Values are numbers, texts and short lists; arrays are
given by shape, sums and (where they are integers) a digest, many texts by their number
and a digest.

Inputs are the shipped runs and the files in ``benchmarks/parity``, of which
``inputs.toml`` lists the captures with their options.  ``captures --check`` makes these
again and compares what is deterministic (bytes, demand, presence, labels; not times).
A script that converts the files to another storage format must be checked by this
program, on the last commit that reads the old format: figures of ``trace`` must stay.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomllib
from parity_rooms import FILES, INPUTS, ROOMS, file_of, flat, open_trace, trace_figures

HERE = Path(__file__).resolve().parent
CHANGES = HERE / "parity_changes.toml"
TOLERANCE = 1e-9
"""Relative tolerance of floats; integers, texts and digests must be equal."""

Figures = dict[str, Any]


def record(rooms: Sequence[str]) -> Figures:
    """Compute all figures of some rooms, by name."""
    from moetraffic.errors import MoetrafficError

    figures: Figures = {}
    for room in rooms:
        began = time.process_time()
        for key, compute in ROOMS[room]():
            print(f"  {key}", file=sys.stderr, flush=True)
            try:
                rows = dict(flat(key, compute()))
            except MoetrafficError:
                rows = {key: "refused"}
            if both := figures.keys() & rows.keys():
                raise ValueError(
                    f"figures have the same key: name {sorted(both)[0]} apart"
                )
            figures |= rows
        took = time.process_time() - began
        print(f"{room}: {took:.0f} s, {len(figures)} figures so far", file=sys.stderr)
    return dict(sorted(figures.items()))


# ---- captures ------------------------------------------------------------------------


def capture(name: str, folder: Path) -> Any:
    """Make a capture again, without the host's name and the date."""
    from moetraffic import Trace

    output = folder / f"{name}.h5"
    options = {**INPUTS["common"], **INPUTS["captures"][name], "output": output}
    line = ["-m", "moetraffic", "capture", *["--virtual"] * ("nproc" not in options)]
    line += [part for o, v in options.items() for part in (f"--{o}", str(v))]
    if "program" in options:
        line = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(options["nproc"]),
        ]
        line += [str(FILES / options["program"]), str(output)]
    subprocess.run(
        [sys.executable, *line], check=True, cwd=HERE.parent, stdout=sys.stderr
    )
    trace = Trace.open(output)
    world = trace.meta.world
    nodes = tuple(f"node-{2 * rank // world}" for rank in range(world))
    about = {"nodes": nodes, "created": "2026-01-01T00:00:00+00:00"}
    return trace.replaced(meta=replace(trace.meta, **about))


def make_captures(names: Sequence[str], *, check: bool) -> int:
    """Make captures again; replace the kept files, or compare with them."""

    def untimed(trace: Any) -> Figures:
        found = flat(f"{name}/trace", trace_figures(trace))
        return {key: value for key, value in found if "times" not in key.split("/")}

    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names or INPUTS["captures"]:
            trace = capture(name, Path(folder))
            if check:
                lines += differences(untimed(open_trace(name)), untimed(trace))
            else:
                trace.save(file_of(name), force=True)
    print("\n".join([*lines, f"{len(lines)} differences"]))
    return int(bool(lines))


# ---- comparison ----------------------------------------------------------------------


def difference(before: Any, after: Any, tolerance: float) -> str:
    """Describe how two values of a key differ, with the size; "" if they do not."""
    if isinstance(before, dict) and isinstance(after, dict):
        # sums of floats may cancel: they are as exact as the sum of the sizes
        scale = max(before.get("absolute", 0), after.get("absolute", 0))
        parts = {}
        for name in dict.fromkeys((*before, *after)):
            a, b = before.get(name), after.get(name)
            numbers = isinstance(a, float) and isinstance(b, float)
            if not (numbers and name != "max" and abs(a - b) <= tolerance * scale):
                parts[name] = difference(a, b, tolerance)
        return ", ".join(f"{name} {part}" for name, part in parts.items() if part)
    if (
        isinstance(before, list)
        and isinstance(after, list)
        and len(before) == len(after)
    ):
        pairs = zip(before, after, strict=True)
        changes = [difference(a, b, tolerance) for a, b in pairs]
        return ", ".join(f"[{n}] {part}" for n, part in enumerate(changes) if part)
    types = {type(before), type(after)}
    if (len(types) == 1 and before == after) or not types <= {int, float}:
        same = len(types) == 1 and before == after
        return "" if same else f"{before!r} -> {after!r}"
    change, size = after - before, max(abs(before), abs(after))
    near = abs(change) <= tolerance * size
    if near and (float in types or tolerance > TOLERANCE):
        return ""
    share = f", {change / abs(before):+.3g} of it" if before else ""
    return f"{before!r} -> {after!r} ({change:+.6g}{share})"


def differences(
    before: Figures,
    after: Figures,
    permitted: Sequence[Mapping[str, Any]] = (),
    *,
    tolerance: float = TOLERANCE,
) -> list[str]:
    """List the differences of two sets of figures that are not permitted.

    A permitted change has ``keys``, a glob.  With ``tolerance``, it permits relative
    differences of numbers up to that; without, all, also missing and new keys.
    """
    lines = []
    for key in sorted({*before, *after}):
        rules = [rule for rule in permitted if fnmatchcase(key, rule["keys"])]
        if any("tolerance" not in rule for rule in rules):
            continue
        if key not in after:
            lines.append(f"{key}: missing, was {before[key]}")
        elif key not in before:
            lines.append(f"{key}: new, is {after[key]}")
        else:
            limit = max((tolerance, *(rule["tolerance"] for rule in rules)))
            if found := difference(before[key], after[key], limit):
                lines.append(f"{key}: {found}")
    return lines


def permitted_changes(path: Path) -> list[dict[str, Any]]:
    """Read the permitted changes: ``[[change]]`` with ``keys`` and ``reason``."""
    changes = list(tomllib.loads(path.read_text()).get("change", []))
    for change in changes:
        known = {"keys", "reason", "tolerance"}
        if not {"keys", "reason"} <= set(change) <= known or not change["reason"]:
            raise SystemExit(
                f"a permitted change has keys, a reason and perhaps a tolerance, but "
                f"one is {change}: correct {path}"
            )
    return changes


# ---- command line --------------------------------------------------------------------


def read(path: Path, rooms: Sequence[str]) -> Figures:
    """Read figures, of some rooms if these are given."""
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    figures = json.loads(content).items()
    return {k: v for k, v in figures if not rooms or k.split("/")[1] in rooms}


def write(path: Path, figures: Figures) -> None:
    """Write figures, one a line."""
    lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in figures.items())
    content = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
    compressed = path.suffix == ".gz"
    path.write_bytes(gzip.compress(content, mtime=0) if compressed else content)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="compute all figures")
    recording.add_argument("output", type=Path, help="JSON to write, or .json.gz")
    comparing = commands.add_parser("compare", help="list what differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--changes", type=Path, default=CHANGES)
    comparing.add_argument("--tolerance", type=float, default=TOLERANCE)
    for one in (recording, comparing):
        one.add_argument("--only", action="append", choices=[*ROOMS], default=[])
    capturing = commands.add_parser("captures", help="make the captures again")
    capturing.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    capturing.add_argument("--check", action="store_true", help="compare, keep no file")
    asked = parser.parse_args(arguments)
    if asked.command == "captures":
        return make_captures(asked.names, check=asked.check)
    if asked.command == "record":
        write(asked.output, record(asked.only or [*ROOMS]))
        return 0
    before, after = (read(path, asked.only) for path in (asked.before, asked.after))
    changes = permitted_changes(asked.changes)
    lines = differences(before, after, changes, tolerance=asked.tolerance)
    print("\n".join([*lines, f"{len(lines)} differences of {len(before)} figures"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
