"""Mappers: compute the per-iteration rows of an exchange, window by window.

Results depend neither on the mapper nor on the number of its threads or machines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from moetraffic.trace import Trace

from .exchange import Rows, Source, Window, read, windows
from .observation import joined, observe, observe_loads

Mapper = Callable[[Source, Sequence[range]], Iterator[Rows]]
"""Function that yields the rows of windows of an exchange, in order."""

Watch = Callable[[Source, Window, Rows], None]
"""Callback that receives each window read and its rows."""


def observed(
    source: Source, mapper: Mapper, *, report: Callable[[str], None] | None = None
) -> Rows:
    """Compute the rows of all iterations of an exchange.

    Parameters
    ----------
    mapper
        Function that computes the rows of windows, such as from :func:`in_threads`.
    report
        Progress callback: the exchange, after each window.
    """
    parts: list[Rows] = []
    for part in mapper(source, windows(source)):
        parts.append(part)
        if report is not None:
            report(source.where)
    return joined(parts)


def in_threads(
    trace: Trace,
    threads: int,
    *,
    watch: Watch | None = None,
    cells: bool = True,
    loads_only: bool = False,
) -> Mapper:
    """Create a mapper that computes rows in threads, with few windows in memory.

    Parameters
    ----------
    watch
        Callback that receives every window with its rows, from several threads at once
        and in any order.
    cells
        Whether cells are tracked over time.
    loads_only
        Whether only loads are computed, as by :func:`.observation.observe_loads`.
    """

    def rows(source: Source, parts: Sequence[range]) -> Iterator[Rows]:
        def work(window: range) -> Rows:
            seen = read(trace, source, window)
            found = (
                observe_loads(source, seen)
                if loads_only
                else observe(source, seen, cells=cells)
            )
            if watch is not None:
                watch(source, seen, found)
            return found

        if threads <= 1 or len(parts) <= 1:
            yield from map(work, parts)
            return
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[Future[Rows]] = deque()
            for part in parts:
                waiting.append(pool.submit(work, part))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    return rows
