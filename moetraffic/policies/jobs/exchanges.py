"""Exchanges of several runs on the links of one network, iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.fabric import Topology, route
from moetraffic.policies.exchange_series import ExchangeSeries
from moetraffic.policies.service.shared_links import SharedLinks, alone_s
from moetraffic.policies.trace_series import byte_series
from moetraffic.trace import PHASES, Trace


def job_series(
    traces: Sequence[Trace],
    *,
    capacity_bytes_s: float,
    topology: Topology | None = None,
    slots: Int64 | None = None,
    communication: float = 0.5,
    iterations: range | None = None,
) -> tuple[ExchangeSeries, SharedLinks]:
    """Read the exchanges of jobs that share a network.

    An iteration has dispatch and combine of each layer, then their gradients in the
    other order.  Compute before each exchange is constant: the same for all exchanges
    of a job, so that a mean iteration of the first half of the run communicates for
    the given share of its time where the job is alone.

    Parameters
    ----------
    traces
        Runs with known bytes, one for each job, two or more.
    capacity_bytes_s
        Rate of the one port that all jobs share, where there is no topology: as if each
        rank of a job shared its port with a rank of every other one.
    topology, slots
        Network, and slots of all ranks ``[sum of W]``, which jobs take in turn.
    communication
        Share of the time of a job's iteration, above 0 and at most 1.
    iterations
        Selection; jobs are paired from their first ones.

    Returns
    -------
    series, links
        Bytes ``[T, J, C, L]`` of each iteration, job, exchange and link, as layer 0,
        and what serves them.

    Raises
    ------
    AnalysisError
        If there is one job only, or the share is impossible.
    """
    if len(traces) < 2:
        raise AnalysisError(
            "jobs share a network, but there is one trace: give two or more"
        )
    if not 0 < communication <= 1:
        raise AnalysisError(
            f"the share of communication is above 0 and at most 1, not {communication}:"
            " correct it"
        )
    every = [_matrices(trace, iterations) for trace in traces]
    steps = min(len(calls[0]) for calls in every)
    port = np.array([capacity_bytes_s])
    capacity = port if topology is None else topology.capacity
    number = np.array([len(calls) for calls in every])
    # a job with fewer exchanges has empty ones, without compute, at its end
    sent = np.zeros((steps, len(every), number.max(), len(capacity)))
    for job, calls in enumerate(every):
        taken = None if slots is None else slots[job :: len(every)]
        for call, matrices in enumerate(calls):
            sent[:, job, call] = _on_links(matrices[:steps], topology, taken)
    used = sent.any(axis=(0, 1, 2))
    sent, capacity = sent[..., used], capacity[used]
    links = SharedLinks(capacity=capacity, compute_s=np.zeros(sent.shape[1:3]))
    mean = alone_s(sent[: steps // 2].mean(axis=0), links).sum(axis=1) / number
    there = np.arange(number.max()) < number[:, None]
    compute = there * (mean * (1 / communication - 1))[:, None]
    series = ExchangeSeries(
        name=" + ".join(str(trace.name) for trace in traces),
        phase="all",
        iterations=np.arange(steps),
        layers={0: sent},
    )
    return series, SharedLinks(capacity=capacity, compute_s=compute)


def single_job(trace: Trace, **_: object) -> ExchangeSeries:
    """Refuse one trace, where policies are for several jobs.

    Raises
    ------
    AnalysisError
        Always.
    """
    raise AnalysisError(
        f"jobs share a network, but {trace.name} is one: evaluate the series of "
        "job_series with two traces or more"
    )


def _matrices(trace: Trace, iterations: range | None) -> list[Float64]:
    """Read the matrices ``[T, W, W]`` of all exchanges of an iteration, in order."""
    known = {site.phase for site in trace.sites if site.phase in PHASES}
    forward, backward = PHASES[:2], PHASES[2:]
    calls: list[Float64] = []
    for phases, sign in ((forward, 1), (backward, -1)):
        series = [
            byte_series(trace, phase=phase, iterations=iterations)
            for phase in phases
            if phase in known
        ]
        for layer in sorted({n for s in series for n in s.layers}, key=_number)[::sign]:
            calls += [s.layers[layer][:] for s in series if layer in s.layers]
    return calls


def _number(layer: object) -> int:
    return layer if isinstance(layer, int) else 0


def _on_links(
    matrices: Float64, topology: Topology | None, slots: Int64 | None
) -> Float64:
    """Compute the bytes on each link, ``[T, L]``; of the busiest port without one."""
    sent = matrices * ~np.eye(matrices.shape[1], dtype=bool)
    if topology is None or slots is None:
        lines = np.maximum(sent.sum(axis=1).max(axis=1), sent.sum(axis=2).max(axis=1))
        return np.asarray(lines[:, None])
    shares = route(topology, slots[: sent.shape[1]]).matrix.astype(np.float64)
    return np.asarray(sent.reshape(len(sent), -1) @ shares)
