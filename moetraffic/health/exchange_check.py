"""Check that ranks can exchange data over gloo and compare their clocks."""

from __future__ import annotations

import math
import sys

from moetraffic.launch import Heartbeat, RankEnvironment, launch

from .finding import Finding, State

DEADLINE_S = 90.0
NEAR_NS = 1_000_000
"""Clock error, in ns, above which times of different hosts are hard to compare."""


def try_ranks(ranks: int, rank_env: RankEnvironment | None = None) -> list[Finding]:
    """Run an all-to-all over gloo and compare the ranks' clocks.

    Parameters
    ----------
    ranks
        Number of ranks to start on this host.
    rank_env
        Rank of this process if another launcher started the ranks: one process is
        run, and the ranks use the launcher's rendezvous address.

    Returns
    -------
    list of Finding
        Result of the exchange and, if it succeeded, of the clock comparison.
    """
    heard: list[Heartbeat] = []
    outcome = launch(
        [sys.executable, "-m", "moetraffic.health.exchange"],
        ranks=ranks,
        start_deadline_s=DEADLINE_S if rank_env is None else math.inf,
        operation_deadline_s=DEADLINE_S,
        on_event=heard.append,
        rank_env=rank_env,
    )
    number = ranks if rank_env is None else rank_env.world
    told = [event.fields for event in heard if event.event == "step"]
    if not outcome.ok or not told:
        return [
            Finding(
                area="network",
                name="exchange",
                state=State.STOP,
                said=f"{number} ranks did not exchange rows over gloo: "
                f"{outcome.sentence or 'a rank ended early'}",
                remedy="see network and memory in this table; GLOO_SOCKET_IFNAME names "
                "the interface to use",
            )
        ]
    found = told[0]
    return [
        Finding(
            area="network",
            name="exchange",
            state=State.OK,
            said=f"{number} ranks met and exchanged rows over gloo, in "
            f"{outcome.duration_s:.1f} s with their start",
        ),
        _clocks(int(found["offset_ns"]), int(found["error_ns"]), number),
    ]


def _clocks(offset_ns: int, error_ns: int, ranks: int) -> Finding:
    if error_ns < 0:
        return Finding(
            area="network",
            name="clocks",
            state=State.NOTE,
            said="a rank's clock could not be compared with rank 0's",
            remedy="times of different hosts will stand as unknown",
        )
    near = error_ns <= NEAR_NS
    if not offset_ns and not error_ns:
        said = f"{ranks} ranks read one clock"
    else:
        said = (
            f"up to {offset_ns / 1e6:.3f} ms from rank 0's, known to "
            f"{error_ns / 1e6:.3f} ms (corrected in traces)"
        )
    return Finding(
        area="network",
        name="clocks",
        state=State.OK if near else State.NOTE,
        said=said,
        remedy=""
        if near
        else "the way to rank 0's store is slow: use a faster interface",
    )
