"""Write synthetic traces: streamed to disk with bounded memory.

Counts come iteration by iteration and go, deflated, to a scratch file; when all are
there, or the user has ended it, the trace of what is complete is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic import __version__
from moetraffic.arrays import Int64
from moetraffic.errors import LayoutError, TraceError
from moetraffic.generate.analog.analog import Analog
from moetraffic.generate.fit import Size, fit_trace
from moetraffic.generate.generator import Demand
from moetraffic.generate.parametric.model import TrafficModel
from moetraffic.generate.parametric.presets import preset_model
from moetraffic.generate.parametric.what_if import Knobs
from moetraffic.generate.scenario import Scenario
from moetraffic.patterns import Parallelism
from moetraffic.trace import (
    ROUTING,
    UNKNOWN_TIME,
    Group,
    Meta,
    Occurrences,
    Site,
    Steps,
    Trace,
)
from moetraffic.trace.hdf5.durable import validate_output
from moetraffic.trace.model import Presence
from moetraffic.trace.panel import ArrayPanel, Panel
from moetraffic.trace.placement import contiguous_placement
from moetraffic.trace.routed import RoutedLayer, trace_of_routing
from moetraffic.trace.rows import TIMES, Rows

from .rhythm import Beat, Rhythm
from .scratch_file import ScratchFile, ScratchPanel, Series

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
    with ScratchFile(path.absolute().parent) as scratch:
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
        lazy = builder.trace(source=source)
        return lazy.select(np.arange(len(lazy.occurrences)))


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
        self.demand, self.scene, self.seed = demand, scene, seed
        self.rhythm = rhythm
        # contiguous ranks, as Megatron's order has them
        layout = Parallelism(dp=scene.ranks, ep=scene.ep)
        self.groups = [Group(kind="ep", ranks=tuple(g)) for g in layout.groups("ep")]
        self.frame = _frame(scene, self.groups)
        self.done = 0
        sites = self.frame.sites
        self.counts = {
            n: Series(scratch, np.int32)
            for n, s in enumerate(sites)
            if s.operation == ROUTING
        }
        self.dropped = {
            n: Series(scratch, np.int32)
            for n in (self.counts if scene.capacity else ())
        }
        self.times = {
            (name, n): Series(scratch, np.int64)
            for name in TIMES
            for n in range(len(sites) if rhythm is not None else 0)
        }
        self.step_times: list[Int64] = []
        at = {(x.layer, x.slot): i for i, x in enumerate(scene.exchanges)}
        self.exchange = [at[s.layer, s.slot] for s in sites]

    def draw(self, rows: int, tick: Tick | None) -> None:
        """Draw all iterations; ``done`` counts those that are whole."""
        beat = None
        if self.rhythm is not None:
            beat = Beat(self.rhythm, self.scene, self.frame, seed=self.seed)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for first, counts in self.demand.blocks(rows):
                work: list[tuple[Series, npt.NDArray[Any]]] = []
                for number, series in self.counts.items():
                    members = list(self.groups[self.frame.sites[number].group].ranks)
                    mine = counts[:, self.exchange[number], members]
                    work.append((series, mine))
                    if self.scene.capacity:
                        over = np.maximum(mine - self.scene.capacity, 0)
                        work.append((self.dropped[number], over))
                if beat is not None:
                    told, steps = beat.block(first, counts)
                    for name, stack in zip(TIMES, told, strict=True):
                        for number in range(len(self.frame.sites)):
                            work.append((self.times[name, number], stack[number]))
                list(pool.map(lambda pair: pair[0].append(pair[1]), work))
                if beat is not None:
                    self.step_times.append(steps)
                self.done = first + len(counts)
                if tick is not None:
                    tick(self.done)

    def trace(self, *, source: str) -> Trace:
        """The trace of what is done; its panels are read from the scratch file."""
        count, frame = self.done, self.frame
        sites, programs = list(frame.sites), list(frame.programs)
        groups, order = list(self.groups), _positions(frame)
        site = np.repeat(np.arange(len(sites), dtype=np.int32), count)
        iteration = np.tile(np.arange(count, dtype=np.int64), len(sites))
        of_group = np.array([s.group for s in sites])
        each = np.array(
            [order[of_group == g].max(initial=-1) + 1 for g in range(len(groups))]
        )
        sequence = iteration * each[of_group[site]] + order[site]
        sequence[order[site] < 0] = -1
        occurrences = Occurrences(iteration=iteration, site=site, sequence=sequence)
        return Trace(
            meta=_meta(self, source),
            groups=groups,
            sites=sites,
            occurrences=occurrences,
            panels=self._panels(sites, groups, occurrences),
            steps=self._steps(),
            programs=programs,
            placements=frame.placements,
        )

    def _panels(
        self, sites: Sequence[Site], groups: Sequence[Group], every: Occurrences
    ) -> dict[str, Panel]:
        count = self.done
        width, experts = self.scene.ep, self.scene.experts
        panels: dict[str, Panel] = {}
        for name, rows in Rows(groups, sites, every).expected().items():
            kind, _, shape = name.partition("_")
            if kind == "present":
                panels[name] = _constant(rows, shape, np.uint8, Presence.RECORDED)
            elif kind in TIMES and self.rhythm is not None and int(shape) == width:
                here = [n for n, s in enumerate(sites) if _width(s, groups) == width]
                series = [self.times.get((kind, n)) for n in here]
                panels[name] = ScratchPanel(series, count, (width,), UNKNOWN_TIME)
            elif kind in TIMES:
                panels[name] = _constant(rows, shape, np.int64, UNKNOWN_TIME)
            else:
                source = self.counts if kind == "demand" else self.dropped
                panels[name] = ScratchPanel(
                    list(source.values()), count, (width, experts)
                )
        return panels

    def _steps(self) -> Steps:
        scene, iterations = self.scene, np.arange(self.done)
        tokens = scene.tokens * len(scene.slots)
        steps = Steps.of_training(iterations, scene.ranks, tokens=tokens)
        if not self.step_times:
            return steps
        both = np.concatenate(self.step_times)[: self.done]  # [n, 2, R]
        return replace(steps, start=both[:, 0].copy(), end=both[:, 1].copy())


def _frame(scene: Scenario, groups: Sequence[Group]) -> Trace:
    """Groups, sites, programs and placement, of one iteration without a token."""
    # a copy that is dropped says that drops are to be stored
    shape = (1, scene.ranks, scene.experts)
    copies = np.full(shape, scene.capacity > 0, np.int32)
    layers = [
        RoutedLayer(
            layer=x.layer,
            slot=x.slot,
            iteration=np.zeros(1, np.int64),
            demand=copies,
            dropped=copies if scene.capacity else None,
            row_bytes=x.row_bytes,
            dtype=x.dtype,
            padded=scene.padded,
            phases=x.phases,
        )
        for x in scene.exchanges
    ]
    return trace_of_routing(
        layers,
        groups=groups,
        placements=contiguous_placement(groups, scene.layers, scene.experts),
        meta=Meta(world=scene.ranks),
        steps=Steps.of_training(np.zeros(1, np.int64), scene.ranks),
        kind=Trace,
    )


def _positions(frame: Trace) -> Int64:
    """Which collective of its group's iteration each site is, -1 for none."""
    out = np.full(len(frame.sites), -1, np.int64)
    out[frame.occurrences.site] = frame.occurrences.sequence
    return out


def _constant(rows: int, width: str, dtype: npt.DTypeLike, value: int) -> Panel:
    return ArrayPanel(np.broadcast_to(np.array(value, dtype), (rows, int(width))))


def _width(site: Site, groups: Sequence[Group]) -> int:
    return len(groups[site.group].ranks)


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
