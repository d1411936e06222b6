"""Affinity graph: one time shift a job from shifts that links want each for itself.

Jobs and links are the two sides of a graph; an edge says which shift the job has on
that link.  Only differences between the jobs of a link matter, so walking the graph
from any job fixes the others, and without a loop all links are satisfied.

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
    """One shift a job that agrees with the shifts on every link.

    Parameters
    ----------
    links
        By link, the shift of each of its jobs, seconds.
    periods_s
        Iteration time of each job, seconds.
    tolerance_s
        Where links form a loop, what they want may differ by so much.

    Returns
    -------
    dict of str to float
        Seconds, from 0 to below the job's period; in each connected part of the graph
        the first job has 0.

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
    """Each link of a part of the graph, with a job whose shift is known by then."""
    return [
        (one, other)
        for one, other in nx.bfs_edges(graph, ("job", job))
        if other[0] == "link"
    ]
