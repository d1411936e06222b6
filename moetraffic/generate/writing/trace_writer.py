"""Write synthetic traces: streamed to disk with bounded memory.

Counts come iteration by iteration and go to a temporary file; when all are there, or
the user has ended it, the trace of what is complete is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic import __version__
from moetraffic.arrays import Int32, Int64
from moetraffic.errors import LayoutError, TraceError
from moetraffic.files import validate_output, write_errors
from moetraffic.generate.analog.analog import Analog
from moetraffic.generate.fit import Size, fit_trace
from moetraffic.generate.generator import Demand
from moetraffic.generate.parametric.model import TrafficModel
from moetraffic.generate.parametric.presets import preset_model
from moetraffic.generate.parametric.what_if import Knobs
from moetraffic.patterns import Layout
from moetraffic.trace import Group, Meta, Steps, Trace
from moetraffic.trace.matrix import contiguous_placement
from moetraffic.trace.panel import (
    ArrayPanel,
    ComputedPanel,
    Panel,
    constant_panel,
    stacked,
)
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.trace.trace import TIMES

from .rhythm import Beat, Rhythm
from .scratch_file import ScratchFile

Tick = Callable[[int], None]

MOST_STEP_CELLS = 1 << 26
"""Steps times ranks whose losses and times fit into memory: 2 GB of them."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """Result of writing a synthetic trace."""

    iterations: int  # that are in the file
    asked: int
    path: Path

    @property
    def complete(self) -> bool:
        """Whether all requested iterations were written."""
        return self.iterations == self.asked


def write_synthetic_trace(
    demand: Demand,
    path: str | Path,
    *,
    seed: int = -1,
    rhythm: Rhythm | None = None,
    source: str = "",
    rows: int = 0,
    tick: Tick | None = None,
    force: bool = False,
) -> Written:
    """Sample a run and write its synthetic trace.

    Parameters
    ----------
    demand
        What to draw.
    path
        The file; it appears whole.
    seed
        Of the rhythm; it is told in the meta.
    rhythm
        When calls are made; None: times are unknown.
    source
        What the meta says that it was made from.
    rows
        Iterations of a block, 0: as many as suit.  The file does not depend on it.
    tick
        Told how many iterations are drawn.
    force
        A file that is there may be replaced.

    Returns
    -------
    Written
        With fewer iterations than asked for where the user ended it by an interrupt:
        what was complete is in the file.

    Raises
    ------
    TraceError
        If the file cannot be written.
    KeyboardInterrupt
        If the user ended it before the first iteration was complete.
    """
    path = Path(path)
    validate_output(path, force=force, error=TraceError)
    with (
        write_errors(path, error=TraceError),
        ScratchFile(path.absolute().parent) as scratch,
    ):
        builder = _Builder(demand, scratch, seed=seed, rhythm=rhythm)
        try:
            builder.draw(rows, tick)
        except KeyboardInterrupt:
            if not builder.done:
                raise
        made = builder.trace(source=source)
        made.save(path, force=force)
    return Written(iterations=builder.done, asked=demand.iterations, path=path)


def synthetic_trace(
    demand: Demand,
    folder: Path,
    *,
    seed: int = -1,
    rhythm: Rhythm | None = None,
    source: str = "",
) -> Trace:
    """Sample a synthetic trace in memory; see :func:`write_synthetic_trace`.

    Parameters
    ----------
    folder
        For a scratch file while it is drawn.
    """
    with ScratchFile(folder) as scratch:
        builder = _Builder(demand, scratch, seed=seed, rhythm=rhythm)
        builder.draw(0, None)
        return builder.trace(source=source, loaded=True)


def generate_trace(
    source: Trace | TrafficModel | str | Path,
    output: str | Path | None = None,
    *,
    iterations: int | None = None,
    seed: int = 0,
    ranks: int | None = None,
    experts: int | None = None,
    k: int | None = None,
    ep: int | None = None,
    knobs: Knobs | None = None,
    times: bool = True,
    force: bool = False,
) -> Trace:
    """Generate a synthetic trace from a captured trace or a fitted traffic model.

    Parameters
    ----------
    source
        A trace, or its file, to fit (with the parametric model for other experts,
        another k or knobs, else with the analog generator), a fitted model, or the
        name of a shipped model (see :func:`.presets.preset_names`).
    output
        File to write; None keeps the trace in memory.
    iterations, ranks, experts, k, ep
        Size of the synthetic run; None takes the value of the fitted run.
    seed
        Random seed: equal seeds give equal traces.
    knobs
        What-if factors of skew, drift and imbalance.
    times
        Include the times of calls if the fitted run has times.
    force
        Replace an existing file.

    Returns
    -------
    Trace
        The synthetic trace, read from ``output`` if one is given.

    Raises
    ------
    LayoutError
        If the size is not possible.
    TraceError
        If the source cannot be fitted or the output cannot be written.
    """
    size = Size(ranks=ranks, experts=experts, k=k, ep=ep)
    model: Analog | TrafficModel
    if isinstance(source, Path) or (isinstance(source, str) and source[-3:] == ".h5"):
        source = Trace.open(source)
    if isinstance(source, Trace):
        kind = "parametric" if knobs is not None else ""
        model = fit_trace(source, kind, size=size, judged=False).model
    else:
        model = preset_model(source) if isinstance(source, str) else source
    count = model.fitted if iterations is None else iterations
    asked: dict[str, Any] = {"ranks": ranks, "ep": ep}
    if isinstance(model, TrafficModel):
        asked = {**asdict(size), "knobs": knobs or Knobs()}
    demand: Demand = model.sample(iterations=count, seed=seed, **asked)
    rhythm = model.rhythm if times else None
    if output is None:
        with TemporaryDirectory(prefix="moetraffic-") as folder:
            return synthetic_trace(
                demand, Path(folder), seed=seed, rhythm=rhythm, source=demand.about
            )
    write_synthetic_trace(
        demand, output, seed=seed, rhythm=rhythm, source=demand.about, force=force
    )
    return Trace.open(output)


class _Builder:
    """A trace while it is drawn."""

    def __init__(
        self, demand: Demand, scratch: ScratchFile, *, seed: int, rhythm: Rhythm | None
    ) -> None:
        scene = demand.scenario
        if demand.iterations * scene.ranks > MOST_STEP_CELLS:
            raise LayoutError(
                f"steps times ranks are at most {MOST_STEP_CELLS}, but "
                f"{demand.iterations} iterations of {scene.ranks} ranks are more: "
                "lower --iterations or --ranks"
            )
        self.demand, self.scene, self.scratch = demand, scene, scratch
        self.seed, self.rhythm = seed, rhythm
        # contiguous ranks, as Megatron's order has them
        layout = Layout(dp=scene.ranks, ep=scene.ep)
        self.groups = [Group(kind="ep", ranks=tuple(g)) for g in layout.groups("ep")]
        self.done = 0
        self.step_times: list[Int64] = []

    def draw(self, rows: int, tick: Tick | None) -> None:
        """Draw all iterations; ``done`` counts those that are whole."""
        beat = None
        if self.rhythm is not None:
            beat = Beat(self.rhythm, self.scene, self.trace(), seed=self.seed)

        def write(counts: Int32, times: Sequence[Int64], steps: Int64 | None) -> None:
            arrays: dict[str, npt.NDArray[Any]] = {"counts": counts.swapaxes(0, 1)}
            arrays |= dict(zip(TIMES, times, strict=False))
            self.scratch.append(arrays, self.scene.ep)
            if steps is not None:
                self.step_times.append(steps)
            self.done += len(counts)

        # an interrupt reaches the main thread alone: a block is written as a whole
        with ThreadPoolExecutor(1) as writer:
            written: Future[Any] = writer.submit(int)
            for first, counts in self.demand.blocks(rows):
                times, steps = beat.block(first, counts) if beat else ((), None)
                written.result()
                written = writer.submit(write, counts, times, steps)
                if tick is not None:
                    tick(first + len(counts))
            written.result()

    def trace(self, *, source: str = "", loaded: bool = False) -> Trace:
        """Build the trace of what is done, read from the scratch file, or loaded."""
        scene, count = self.scene, self.done
        every, shape = np.arange(count), (count, scene.ranks, scene.experts)

        def read(name: str, at: int) -> Panel:
            panel = self.scratch.panel(name, at, count)
            return ArrayPanel(panel.read(0, count)) if loaded else panel

        def dropped(demand: Panel) -> Panel:
            def over(start: int, stop: int) -> Int32:
                return demand.read(start, stop).clip(scene.capacity) - scene.capacity

            return ComputedPanel(shape, np.int32, over)

        demand = [
            read("counts", x) if count else constant_panel(shape, np.int32, 0)
            for x in range(len(scene.exchanges))
        ]
        steps = Steps.of_training(
            every, scene.ranks, tokens=scene.tokens * len(scene.slots)
        )
        trace = trace_of_routing(
            [
                RoutedLayer(
                    layer=x.layer,
                    slot=x.slot,
                    iteration=every,
                    demand=copies,
                    dropped=dropped(copies) if scene.capacity else None,
                    row_bytes=x.row_bytes,
                    dtype=x.dtype,
                    padded=scene.padded,
                    phases=x.phases,
                )
                for x, copies in zip(scene.exchanges, demand, strict=True)
            ],
            groups=self.groups,
            placements=contiguous_placement(self.groups, scene.layers, scene.experts),
            meta=_meta(self, source),
            steps=steps,
        )
        if not self.step_times:
            return trace
        both = np.concatenate(self.step_times)[:count]  # [n, 2, R]
        panels = dict(trace.panels)
        for name in panels:
            table, _, column = name.partition("/")
            if column in TIMES:
                sites = [n for n, t in enumerate(trace.table_of_site) if t == table]
                panels[name] = stacked([read(column, n) for n in sites])
        return trace.replaced(
            panels=panels,
            steps=replace(steps, start=both[:, 0].copy(), end=both[:, 1].copy()),
        )


def _meta(builder: _Builder, source: str) -> Meta:
    scene, count = builder.scene, builder.done
    asked, repeats = builder.demand.iterations, builder.demand.repeats_from
    balanced = scene.k * scene.tokens / scene.experts if scene.k else 0.0
    rows = scene.capacity or scene.padded
    return Meta(
        origin="generated",
        model=scene.model,
        router=scene.router,
        dispatch=scene.dispatch,
        world=scene.ranks,
        dp=scene.ranks,
        ep=scene.ep,
        layers=max(scene.layers) + 1,
        hidden=scene.hidden,
        experts=scene.experts,
        k=scene.k,
        capacity_factor=rows / balanced if rows and balanced else float("nan"),
        dtype=scene.exchanges[0].dtype,
        seed=builder.seed,
        virtual=builder.rhythm is None,
        complete=count == asked,
        missing=""
        if count == asked
        else f"{count} of {asked} iterations: the user ended it",
        moetraffic=__version__,
        source=(source or scene.source)[:1000],
        repeats_from=-1 if count <= repeats else repeats,
    )
