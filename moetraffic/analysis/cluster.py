"""Compute the per-iteration rows of a trace on a dask.distributed cluster.

The trace lies on a shared file system.  A task is a file, an exchange and a window.  A
worker opens the file by its path, reads the window and returns the rows, bit-identical
to those of a local thread; run statistics are computed where the rows are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moetraffic.errors import AnalysisError, install_command
from moetraffic.trace import Trace

from .exchange import OF, Rows, Source, read, sources
from .observation import joined, observe

if TYPE_CHECKING:
    from .mapper import Mapper

AT_A_TASK = 4
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
    client: Any
    try:
        where = normalize_address(address)
        if not where.startswith("inproc:"):
            # Client does not clean up after a malformed address: check it before
            get_address_host_port(where, strict=True)
        client = Client(  # type: ignore[no-untyped-call]
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
    of: Sequence[str] = OF,
) -> Mapper:
    """Create a mapper that computes the rows of a trace file on a cluster.

    Parameters
    ----------
    client
        Client from :func:`connected`.
    path
        Trace file, at the same path on every worker.
    """
    chosen = (
        None if layers is None else tuple(layers),
        phase,
        None if iterations is None else (iterations.start, iterations.stop),
        tuple(of),
    )
    where, changed = str(path.resolve()), path.stat().st_mtime_ns

    def rows(source: Source, parts: Sequence[range]) -> Iterator[Rows]:
        tasks = [parts[a : a + AT_A_TASK] for a in range(0, len(parts), AT_A_TASK)]
        key = (source.layer, source.group)
        futures = [
            client.submit(rows_of, where, changed, chosen, key, task, pure=False)
            for task in tasks
        ]
        for future in futures:
            yield future.result()
            future.release()

    return rows


def rows_of(
    path: str,
    changed: int,
    chosen: tuple[Any, ...],
    key: tuple[int, int],
    parts: Sequence[range],
) -> Rows:
    """Compute the rows of a few windows of an exchange, as the task of a worker."""
    trace, every = _opened(path, changed, chosen)
    source = next(s for s in every if (s.layer, s.group) == key)
    return joined([observe(source, read(trace, source, part)) for part in parts])


@lru_cache(maxsize=4)
def _opened(
    path: str, changed: int, chosen: tuple[Any, ...]
) -> tuple[Trace, list[Source]]:
    """Open a trace file, cached by path and modification time ``changed``."""
    if Path(path).stat().st_mtime_ns != changed:
        raise AnalysisError(
            f"a worker reads the file that was asked for, but {path} is another one "
            "there: put the traces on a file system that all workers share"
        )
    layers, phase, iterations, of = chosen
    trace = Trace.open(path)
    span = None if iterations is None else range(*iterations)
    return trace, sources(trace, [], layers=layers, phase=phase, iterations=span, of=of)
