"""Measurements in the text that nccl-tests prints.

Lines that begin with # name the ranks with their hosts and, since 2.17, the test.  The
others are measurements: size, count, type, operation, root, and twice (out of place and
in place) time in microseconds, algbw, busbw and wrong elements.  The number of ranks
that are not listed, as in a shortened text, follows from busbw / algbw.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from moetraffic.errors import AnalysisError

from .collectives import COLLECTIVES, UNEVEN, convention

TESTS = {"alltoall": "all_to_all", "alltoallv": UNEVEN, "sendrecv": "send_recv"}
"""Collectives of programs <name>_perf, where the names differ."""

TEST = re.compile(r"(\w+?)_perf(?![a-z])")
RANK = re.compile(
    r"#\s+Rank\s+\d+\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+ on\s+(\S+)\s+device"
)
PREFIX = re.compile(r"^\[[\d,]+\](?:<\w+>)?:?\s*")  # of mpirun --tag-output
SIDES = (("out", -8), ("in", -4))  # first column of each, from the end
MOST_DERIVED = 64  # ranks that busbw / algbw can tell apart
ROUNDED = 0.006  # error of printed bandwidths


def is_nccl_tests(text: str) -> bool:
    """Whether a text has lines of nccl-tests."""
    return "#wrong" in text or re.search(r"# nThread \d+ nGpus", text) is not None


def measurements(lines: Iterable[str], name: str) -> list[dict[str, Any]]:
    """Read the measurements of one or several tests, a row each.

    ``name`` is that of the file, which may state the test where the text does not.

    Raises
    ------
    AnalysisError
        If no test is stated.
    """
    stated = TEST.search(name)
    test = stated[1] if stated else ""
    runs: list[tuple[list[str], list[dict[str, Any]]]] = [([], [])]  # hosts, rows
    for line in lines:
        text = PREFIX.sub("", line).strip()
        if rank := RANK.match(text):
            if runs[-1][1]:
                runs.append(([], []))
            if rank[1] in (None, "0"):  # of several groups, the first
                runs[-1][0].append(rank[2])
        elif (stated := TEST.search(text)) and not text[:1].isdigit():
            test = stated[1]
        values = text.split()
        if len(values) < 10 or not (values[0].isdigit() and values[1].isdigit()):
            continue
        if not test:
            raise AnalysisError(
                f"{name} does not name its test, as nccl-tests before 2.17: name the "
                "file like all_reduce_perf.log"
            )
        for place, first in SIDES:
            time, algbw, busbw, wrong = map(_number, values[first:][:4])
            row = {
                "collective": TESTS.get(test, test),
                "size_bytes": values[0],
                "time_us": time,
                "wrong": wrong,
                "place": place,
                "algbw": algbw,
                "busbw": busbw,
            }
            runs[-1][1].extend([row] * (time > 0))  # "N/A" where not measured
    for hosts, rows in runs:
        ranks = _ranks(rows, len(hosts))
        for row in rows:
            row |= {"ranks": ranks, "span": len(set(hosts)) or 1}
    return [row for _, rows in runs for row in rows]


def _ranks(rows: Sequence[dict[str, Any]], listed: int) -> int:
    """Return the listed ranks, unless the largest bandwidths are of another number."""
    rows = [row for row in rows if row["busbw"] > 0]
    if not rows or rows[0]["collective"] not in COLLECTIVES:
        return listed
    best = max(rows, key=lambda row: float(row["busbw"]))
    ranks = np.array([max(listed, 1), *range(2, MOST_DERIVED + 1)])
    factor = convention(best["collective"]).factor(ranks)
    apart = np.abs(factor * best["algbw"] - best["busbw"])
    agrees = listed and apart[0] <= ROUNDED * (1 + factor[0])
    return listed if agrees else int(ranks[np.argmin(apart[1:]) + 1])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # "N/A"
        return 0.0
