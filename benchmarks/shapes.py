"""What traces of many shapes of training name, name wrongly and leave unnamed.

Each shape of ``tests/capture/shapes`` logs its own collectives and losses.  It runs
without a recorder, under ``moetraffic run``, with a Recorder, and with a Recorder and
annotations; every trace is compared with the log.  ``--write`` puts the table between
the markers of a page.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from page import replace, save  # noqa: E402

from tests.capture.shapes.stage import MODES, SHAPES, start  # noqa: E402
from tests.capture.shapes.verdict import ASPECTS, Verdict, judge  # noqa: E402

BEGIN, END = "<!-- shapes: benchmarks/shapes.py -->", "<!-- end of shapes -->"
TOGETHER = 4
PATIENCE_S = 900.0  # of the shapes that share a process, on a busy machine
PLURALS = {"micro-batch": "micro-batches"}

Verdicts = dict[str, Verdict]  # by mode


def measure(names: Sequence[str]) -> dict[str, Verdicts]:
    """Play shapes in all modes, and judge them."""
    found: dict[str, Verdicts] = {}
    with tempfile.TemporaryDirectory() as folder:
        start(Path(folder), names, MODES, PATIENCE_S)
        for name in names:
            at = {mode: Path(folder, f"{name}-{mode}") for mode in MODES}
            found[name] = {m: judge(at[m], at["bare"]) for m in MODES[1:]}
            faults = {mode: v.faults for mode, v in found[name].items() if v.faults}
            print(name, faults or "", file=sys.stderr, flush=True)
    return found


def batched(names: Sequence[str]) -> list[Sequence[str]]:
    """Shapes that share a process, which imports torch once."""
    return [names[at : at + TOGETHER] for at in range(0, len(names), TOGETHER)]


def shares(verdict: Verdict) -> str:
    """The shares that are unnamed, as text."""
    found: dict[str, list[str]] = {}
    for aspect, share in verdict.share_unnamed.items():
        if share:
            plural = PLURALS.get(aspect, f"{aspect}s")
            found.setdefault(f"{max(share, 0.01):.0%}", []).append(plural)
    return "; ".join(f"{', '.join(of)} {share}" for share, of in found.items()) or "0"


def wrong(verdict: Verdict) -> str:
    kinds = {k: n for k, n in verdict.faults.items() if k in ASPECTS or k == "absent"}
    return ", ".join(f"{n} {k}" for k, n in kinds.items()) or "0"


def table(found: dict[str, Verdicts]) -> str:
    """A Markdown table, a row a shape."""
    head = ["shape", "ranks", "calls", "bytes exact", "losses equal"]
    head += [f"{mode}: {what}" for mode in MODES[1:] for what in ("wrong", "unnamed")]
    rows = [head, ["---"] * len(head)]
    for name, verdicts in found.items():
        every = list(verdicts.values())
        calls = sum(v.calls for v in every)
        exact = calls - sum(v.bytes_wrong + v.absent for v in every)
        row = [SHAPES[name].title, str(SHAPES[name].ranks), str(every[0].calls)]
        row += ["all" if exact == calls else f"{exact} of {calls}"]
        row += ["yes" if all(v.losses_equal for v in every) else "no"]
        row += [text for v in every for text in (wrong(v), shares(v))]
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("shapes", nargs="*", help=f"of {', '.join(SHAPES)}; default all")
    asked.add_argument("--json", type=Path, help="write every count to this file")
    asked.add_argument("--write", type=Path, metavar="PAGE", help="a Markdown page")
    told = asked.parse_args()
    if unknown := set(told.shapes) - SHAPES.keys():
        asked.error(f"unknown shapes: {', '.join(sorted(unknown))}")
    found: dict[str, Verdicts] = {}
    for names in batched(told.shapes or list(SHAPES)):
        found |= measure(names)
    text = table(found)
    print(text)
    if told.json:
        plain = {n: {m: v.as_dict() for m, v in f.items()} for n, f in found.items()}
        save(told.json, plain)
    if told.write:
        replace(told.write, BEGIN, END, text)


if __name__ == "__main__":
    main()
