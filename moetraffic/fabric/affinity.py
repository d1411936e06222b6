"""CASSINI affinity graph: merge the per-link time shifts of jobs into one per job.

The graph is bipartite between jobs and links; an edge carries the shift of the job on
that link.  Only the differences between jobs of a link matter, so a traversal from any
job determines the others; without a loop all links are satisfied.

References
----------
CASSINI (NSDI 2024), section 4.1, algorithm 1 and theorem 1: without loops, the shifts
exist, are unique up to the first job's, and keep every link's interleaving.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from moetraffic.errors import FabricError


def consistent_shifts(
    links: Mapping[str, Mapping[str, float]],
    periods_s: Mapping[str, float],
    *,
    tolerance_s: float = 1e-9,
) -> dict[str, float]:
    """Compute one time shift per job that is consistent with the shifts on every link.

    Parameters
    ----------
    links
        Shift of each job on each link, by link and job, seconds.
    periods_s
        Iteration time of each job, seconds.
    tolerance_s
        Maximum difference of the shifts of one job where links form a loop.

    Returns
    -------
    dict of str to float
        Shift by job, seconds in [0, period); 0 for the first job of each connected
        component of the graph.

    Raises
    ------
    FabricError
        If a job has no period, or links in a loop contradict each other.

    Examples
    --------
    >>> wanted = {"l1": {"a": 0.0, "b": 30.0}, "l2": {"b": 0.0, "c": 10.0}}
    >>> consistent_shifts(wanted, {"a": 100.0, "b": 100.0, "c": 100.0})
    {'a': 0.0, 'b': 30.0, 'c': 40.0}
    """
    graph = nx.Graph()
    for link, jobs in links.items():
        for job, shift in jobs.items():
            period = periods_s.get(job, float("nan"))
            if not period > 0:
                raise FabricError(
                    f"every job has a period above 0 s, but that of {job} is "
                    f"{period}: give one"
                )
            graph.add_edge(("job", job), ("link", link), shift=shift)
    found: dict[str, float] = {}
    for _, first in (node for node in graph if node[0] == "job"):
        if first in found:
            continue
        found[first] = 0.0
        for (_, job), (_, link) in _from_job_to_link(graph, first):
            want = links[link]
            start = found[job] - want[job]
            for other, shift in want.items():
                period = periods_s[other]
                due = (start + shift) % period
                if other not in found:
                    found[other] = due
                apart = abs(found[other] - due)
                if min(apart, period - apart) > tolerance_s:
                    raise FabricError(
                        f"links agree on each job's shift, but {link} wants {other} "
                        f"at {due:g} s and another link at {found[other]:g} s: place "
                        "the jobs so that no two links join the same jobs twice"
                    )
    return found


def _from_job_to_link(graph: nx.Graph, job: str) -> list[tuple[tuple[str, str], ...]]:
    """List the links of a connected component, each with its first-reached job."""
    return [
        (one, other)
        for one, other in nx.bfs_edges(graph, ("job", job))
        if other[0] == "link"
    ]
