"""Export all-to-alls as traffic patterns for NIXL's ``kvbench`` benchmark.

For ``sequential-ct-perftest``: ``traffic_patterns`` is a list of ``matrix_file``
(relative to the YAML file), ``mem_type``, ``sleep_before_launch_sec`` and ``metadata``;
a matrix has one row per source, with bytes separated by spaces (ai-dynamo/nixl
``benchmark/kvbench/README.md``, ``main.py`` load_matrix and sequential_ct_perftest).
Storage is not used.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Trace

from .call_selection import (
    ExportedExchange,
    counted,
    exchanges,
    select_calls,
    without_rank_local,
)
from .exporter import Exporter, ExportOptions
from .nccl_tests import as_text

PATTERNS = "traffic_patterns.yaml"
OVERLAPPED = "exchanges that began before another had ended come after it"
IDLE = "exchanges without traffic between ranks are left out"


def write(trace: Trace, folder: Path, options: ExportOptions) -> list[str]:
    """Write the traffic patterns in order, with one matrix file each.

    Before a pattern all ranks sleep equally long: the shortest time that any rank spent
    between exchanges; 0 at the pace "asap"; or ``every_ns``.
    """
    chosen = select_calls(trace, options, only=ALL_TO_ALL, timed=True)
    before, lost = None, Counter[str]()
    with (folder / PATTERNS).open("w") as file:
        file.write("traffic_patterns:\n")
        for one in exchanges(trace, options, chosen):
            sleep = options.every_ns
            if not options.every_ns and options.pace == "captured":
                sleep = _gap(one, before)
                lost[OVERLAPPED] += sleep < 0
                before = one.ends if before is None else np.maximum(before, one.ends)
            sent = without_rank_local(one.bytes, lost)
            if not sent.any():
                lost[IDLE] += 1
                continue
            name = f"{one.name}.txt"
            (folder / name).write_text(as_text(sent))
            seconds = f"{max(0, sleep) / 1e9:.9f}"
            file.write(
                f"- matrix_file: {name}\n  mem_type: cuda\n  xfer_op: WRITE\n"
                f"  shards: 1\n  sleep_before_launch_sec: {seconds}\n"
                f"  metadata: {{iteration: {one.iteration}, layer: {one.site.layer}, "
                f"phase: '{one.site.phase}', micro_batch: {one.site.slot}}}\n"
            )
    return [
        *chosen.lost,
        "all ranks wait for each other before each pattern, and sleep equally long",
        *counted(lost),
    ]


def _gap(one: ExportedExchange, before: Int64 | None) -> int:
    """Return the shortest gap of any rank since its previous exchange, in ns."""
    if before is None:
        return 0
    known = (before != UNKNOWN_TIME) & (one.begins != UNKNOWN_TIME)
    return int((one.begins - before)[known].min()) if known.any() else 0


EXPORTER = Exporter(
    name="nixl",
    what="traffic_patterns.yaml and a matrix file for each exchange",
    readers="NIXL's kvbench (sequential-ct-perftest)",
    limits="bytes are exact; one exchange at a time; all ranks sleep equally long",
    suffix="",
    files=r"traffic_patterns\.yaml|iteration-\d+-[\w-]+\.txt",
    write=write,
)
