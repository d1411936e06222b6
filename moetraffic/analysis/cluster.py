"""Compute the rows of a trace on a dask.distributed cluster.

The trace lies on a file system that all workers share.  A task is a file, an exchange
and a few windows; a worker returns rows that are bit-identical to those of a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.errors import AnalysisError, install_command
from moetraffic.trace import Trace

from .exchange import Exchange, exchanges, read
from .rows import Arrays, window_arrays

if TYPE_CHECKING:
    from .rows import Mapper

WINDOWS = 4
"""Number of windows per task of a worker."""

CONNECT_S = 10.0


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to the dask scheduler at an address and yield the client.

    Raises
    ------
    AnalysisError
        If dask.distributed is not installed, or no scheduler answers there.
    """
    try:
        from distributed import Client
        from distributed.comm.addressing import get_address_host_port, normalize_address
    except ImportError:
        raise AnalysisError(
            "a Dask cluster needs dask.distributed, which is not installed: "
            f"{install_command('dask')}"
        ) from None
    try:
        where = normalize_address(address)
        if not where.startswith("inproc:"):
            # Client does not clean up after a malformed address: check it before
            get_address_host_port(where, strict=True)
        client: Any = Client(  # type: ignore[no-untyped-call]
            address, timeout=CONNECT_S, set_as_default=False
        )
    except (OSError, ValueError) as error:
        raise AnalysisError(
            f"a dask scheduler listens at HOST:PORT, but {address!r} does not answer "
            f"({error}): start `dask scheduler`, and `dask worker` where the work is"
        ) from None
    try:
        yield client
    finally:
        client.close()


def on_cluster(
    client: Any,
    path: Path,
    *,
    layers: Sequence[int] | None = None,
    phase: str = "dispatch",
    iterations: range | None = None,
) -> Mapper:
    """Create a mapper that computes the rows of a trace file on a cluster.

    ``path`` is the same on every worker; the other arguments are those of
    :func:`moetraffic.analysis.exchange.exchanges`.
    """
    chosen = (None if layers is None else tuple(layers), phase, iterations)
    file, changed = str(path.resolve()), path.stat().st_mtime_ns

    def mapped(exchange: Exchange, parts: Sequence[range]) -> Iterator[Arrays]:
        place = (exchange.layer, exchange.group)
        tasks = [
            client.submit(
                _task,
                file,
                changed,
                chosen,
                place,
                parts[first : first + WINDOWS],
                pure=False,
            )
            for first in range(0, len(parts), WINDOWS)
        ]
        for task in tasks:
            yield task.result()
            task.release()

    return mapped


def _task(
    file: str,
    changed: int,
    chosen: tuple[Any, ...],
    place: tuple[int, int],
    parts: Sequence[range],
) -> Arrays:
    """Compute the arrays of some windows of an exchange on a worker."""
    trace, located = _opened(file, changed, chosen)
    exchange = next(e for e in located if (e.layer, e.group) == place)
    done = [window_arrays(exchange, read(trace, exchange, part)) for part in parts]
    return {name: np.concatenate([d[name] for d in done]) for name in done[0]}


@lru_cache(maxsize=4)
def _opened(
    file: str, changed: int, chosen: tuple[Any, ...]
) -> tuple[Trace, list[Exchange]]:
    """Open a trace file, cached by path and modification time."""
    if Path(file).stat().st_mtime_ns != changed:
        raise AnalysisError(
            f"a worker reads the file that was asked for, but {file} is another one "
            "there: put the traces on a file system that all workers share"
        )
    layers, phase, iterations = chosen
    trace = Trace.open(file)
    return trace, exchanges(
        trace, [], layers=layers, phase=phase, iterations=iterations
    )
