"""Write synthetic traces: streamed to disk with bounded memory.

Counts come iteration by iteration, and a trace file has all iterations of a call site
together: counts go to a temporary file first.  When all are there, or the user has
ended it, the trace of what is complete is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from moetraffic import __version__
from moetraffic.arrays import Int32
from moetraffic.errors import LayoutError, TraceError
from moetraffic.files import DeferredErrorFile, validate_output, write_errors
from moetraffic.patterns import Layout
from moetraffic.trace import Group, Meta, Site, Steps, Trace
from moetraffic.trace.matrix import contiguous_placement
from moetraffic.trace.panel import ComputedPanel, Panel, stacked
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.trace.trace import TIMES

from .relabel import RelabeledCopy
from .scenario import Scenario
from .surrogate import Sample
from .times import CallTimes

CHUNK_BYTES = 256 << 10

MOST_STEP_CELLS = 1 << 26
"""Steps times ranks whose losses and times fit into memory: 2 GB of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SyntheticRun:
    """A run whose counts are drawn while it is written."""

    counts: Sample | RelabeledCopy
    fitted: Scenario  # as captured
    scenario: Scenario  # of the layers, micro-batches, ranks and experts of counts
    seed: int
    source: str
    times: CallTimes | None = None  # None: unknown

    def write(
        self,
        path: str | Path,
        *,
        tick: Callable[[int], None] = lambda done: None,
        force: bool = False,
    ) -> int:
        """Draw the run and write its trace, which appears whole.

        Returns the number of iterations in the file: fewer than asked for where the
        user ended it by an interrupt.  ``tick`` receives how many are drawn, and
        ``force`` allows replacing a file.

        Raises
        ------
        LayoutError
            If the steps do not fit into memory.
        TraceError
            If the file cannot be written.
        KeyboardInterrupt
            If the user ended it before the first iterations were complete.
        """
        path, ranks = Path(path), self.scenario.ranks
        validate_output(path, force=force, error=TraceError)
        if self.counts.iterations * ranks > MOST_STEP_CELLS:
            raise LayoutError(
                f"steps times ranks are at most {MOST_STEP_CELLS:,}, but "
                f"{self.counts.iterations} iterations of {ranks} ranks are more: "
                "lower --iterations or --ranks"
            )
        with (
            write_errors(path, error=TraceError),
            _scratch_file(path.absolute().parent) as (scratch, settle),
        ):
            try:
                for done in _draw(self.counts, self.scenario, scratch, settle):
                    tick(done)
            except KeyboardInterrupt:
                if "demand" not in scratch:
                    raise
            demand = scratch["demand"]
            _trace(self, demand).save(path, force=force)
            return int(demand.shape[1])


@contextmanager
def _scratch_file(folder: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """Open an HDF5 file without a name, and a function that raises its errors."""
    with tempfile.TemporaryDirectory(prefix=".moetraffic-", dir=folder) as hidden:
        target = DeferredErrorFile(Path(hidden) / "scratch.h5")
    try:
        with h5py.File(target, "w", libver=("v110", "v110")) as file:
            yield file, target.settle
    finally:
        target.close()


def _draw(
    counts: Sample | RelabeledCopy,
    scenario: Scenario,
    scratch: h5py.File,
    settle: Callable[[], None],
) -> Iterator[int]:
    """Draw all blocks into a file; yields how many iterations are drawn."""
    layer = [scenario.layers.index(x.layer) for x in scenario.exchanges]
    slot = [scenario.slots.index(x.slot) for x in scenario.exchanges]

    def write(demand: Int32) -> None:
        _append(scratch, demand, scenario.ep)
        scratch.flush()
        settle()

    # an interrupt reaches the main thread alone: a block is written as a whole
    with ThreadPoolExecutor(1) as writer:
        written: Future[None] = writer.submit(lambda: None)
        done = 0
        for block in counts.blocks():
            rows = block.reshape(
                len(block), block.shape[1], len(scenario.slots), -1, block.shape[3]
            )
            written.result()
            written = writer.submit(write, rows[:, layer, slot].swapaxes(0, 1))
            done += len(block)
            yield done
        written.result()


def _append(file: h5py.File, rows: Int32, width: int) -> None:
    """Append ``[X, b, R, E]``, of which ``width`` ranks are read at once."""
    exchanges, count, ranks, experts = rows.shape
    if "demand" not in file:
        deep = max(1, CHUNK_BYTES // (width * experts * rows.itemsize))
        file.create_dataset(
            "demand",
            shape=(exchanges, 0, ranks, experts),
            maxshape=(exchanges, None, ranks, experts),
            dtype=rows.dtype,
            chunks=(1, min(count, deep), width, experts),
            shuffle=True,
            compression="gzip",
            compression_opts=1,
        )
    demand = file["demand"]
    demand.resize(demand.shape[1] + count, axis=1)
    demand[:, -count:] = rows


def _trace(run: SyntheticRun, demand: h5py.Dataset) -> Trace:
    """Build the trace of drawn token copies ``[X, n, R, E]``."""
    scenario, times = run.scenario, run.times

    def copies(number: int) -> Panel:
        return ComputedPanel(
            demand.shape[1:], np.int32, lambda a, b: demand[number, a:b]
        )

    def dropped(number: int) -> Panel:
        return ComputedPanel(
            demand.shape[1:],
            np.int32,
            lambda a, b: np.maximum(demand[number, a:b] - scenario.capacity, 0),
        )

    # contiguous ranks, as Megatron's order has them
    layout = Layout(dp=scenario.ranks, ep=scenario.ep)
    groups = [Group(kind="ep", ranks=tuple(ranks)) for ranks in layout.groups("ep")]
    iterations = np.arange(demand.shape[1])
    steps = Steps.of_training(
        iterations, scenario.ranks, tokens=scenario.tokens * len(scenario.slots)
    )
    trace = trace_of_routing(
        [
            RoutedLayer(
                layer=x.layer,
                slot=x.slot,
                iteration=iterations,
                demand=copies(number),
                dropped=dropped(number) if scenario.capacity else None,
                row_bytes=x.row_bytes,
                dtype=x.dtype,
                padded=scenario.padded,
                phases=x.phases,
            )
            for number, x in enumerate(scenario.exchanges)
        ],
        groups=groups,
        placements=contiguous_placement(groups, scenario.layers, scenario.experts),
        meta=_meta(run, demand.shape[1]),
        steps=steps,
    )
    if times is None:
        return trace

    def timed(site: Site, column: int) -> Panel:
        ranks = groups[site.group].ranks
        return ComputedPanel(
            (len(iterations), len(ranks)),
            np.int64,
            lambda a, b: times.of_call(site, column, ranks, np.arange(a, b)),
        )

    panels = dict(trace.panels)
    for name in panels:
        table, _, column = name.partition("/")
        if column in TIMES:
            panels[name] = stacked(
                [
                    timed(site, TIMES.index(column))
                    for site, own in zip(trace.sites, trace.table_of_site, strict=True)
                    if own == table
                ]
            )
    begin, end = times.of_steps(range(scenario.ranks), iterations)
    return trace.replaced(panels=panels, steps=replace(steps, start=begin, end=end))


def _meta(run: SyntheticRun, done: int) -> Meta:
    scenario, asked, repeats = (
        run.scenario,
        run.counts.iterations,
        run.counts.repeats_from,
    )
    balanced = scenario.k * scenario.tokens / scenario.experts
    rows = scenario.capacity or scenario.padded
    missing = f"{done} of {asked} iterations: the user ended it" if done < asked else ""
    return Meta(
        origin="generated",
        model=scenario.model,
        router=scenario.router,
        dispatch=scenario.dispatch,
        world=scenario.ranks,
        dp=scenario.ranks,
        ep=scenario.ep,
        layers=max(scenario.layers) + 1,
        hidden=scenario.hidden,
        experts=scenario.experts,
        k=scenario.k,
        capacity_factor=rows / balanced if rows else float("nan"),
        dtype=scenario.exchanges[0].dtype,
        seed=run.seed,
        virtual=True,
        complete=not missing,
        missing=missing,
        moetraffic=__version__,
        source=run.source[:1000],
        repeats_from=-1 if done <= repeats else repeats,
    )
