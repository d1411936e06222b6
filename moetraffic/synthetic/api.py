"""Generate synthetic traces from runs, models or presets in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from moetraffic.errors import LayoutError
from moetraffic.trace import Trace
from moetraffic.trace.model import REPEATED

from .model import TrafficModel, is_model, preset_model
from .relabel import relabel
from .scenario import MOST, refuse_beyond, scenario_and_rows
from .surrogate import Knobs
from .times import CallTimes
from .write import SyntheticRun

Source = Trace | TrafficModel | str | Path


def model_of(
    sources: Sequence[Source], tick: Callable[[int], None] = lambda done: None
) -> TrafficModel:
    """Fit a model to traces, or read one: a file, or a shipped one by its name."""
    first = sources[0]
    if isinstance(first, TrafficModel):
        return first
    if len(sources) == 1 and not isinstance(first, Trace):
        if not str(first).endswith(".h5") and not Path(first).exists():
            return preset_model(str(first))
        if is_model(Path(first)):
            return TrafficModel.load(first)
    traces = [Trace.open(run) for run in sources if not isinstance(run, TrafficModel)]
    return TrafficModel.fit(traces, tick=tick)


def copy_of(
    trace: Trace,
    *,
    seed: int = 0,
    iterations: int | None = None,
    ranks: int | None = None,
    ep: int | None = None,
) -> SyntheticRun:
    """Copy a run with its experts relabeled: no new traffic.

    Further ranks repeat what captured ones send; further iterations its last third.

    Raises
    ------
    LayoutError
        If there cannot be such a run.
    """
    fitted, counts = scenario_and_rows(trace)
    scenario = fitted.scaled(ranks=ranks, ep=ep)
    count = len(counts) if iterations is None else iterations
    refuse_beyond("iterations", count, MOST["iterations"])
    slots = np.arange(len(fitted.slots))[:, None]
    rows = slots * fitted.ranks + np.arange(scenario.ranks) % fitted.ranks
    source = f"relabeled copy of {trace.name}"
    if scenario.ranks > fitted.ranks:
        source = f"{source}; ranks {fitted.ranks} to {scenario.ranks - 1} {REPEATED}"
    return SyntheticRun(
        counts=relabel(
            counts, iterations=count, seed=seed, ep=scenario.ep, rows=rows.ravel()
        ),
        fitted=fitted,
        scenario=scenario,
        seed=seed,
        source=source,
        times=CallTimes.read(trace) if scenario.ep == fitted.ep else None,
    )


def generate_trace(
    source: Source | Sequence[Trace | str | Path],
    output: str | Path | None = None,
    *,
    copy: bool = False,
    iterations: int | None = None,
    ranks: int | None = None,
    experts: int | None = None,
    k: int | None = None,
    ep: int | None = None,
    seed: int = 0,
    knobs: Knobs | None = None,
    times: bool = True,
    force: bool = False,
) -> Trace:
    """Generate a synthetic trace.

    Parameters
    ----------
    source
        A trace or its file, or several reruns to fit together; a fitted model or its
        file; or the name of a shipped model (:func:`.model.preset_names`).
    output
        File to write; None: the trace alone is returned.
    copy
        Copy the run with relabeled experts in place of a surrogate; it has the captured
        experts and k.
    iterations, ranks, experts, k, ep
        Size of the synthetic run; None: as fitted.
    seed
        Random seed: equal seeds give equal traces.
    knobs
        Changes to what was fitted.
    times
        Include the times of calls if the fitted run has times.
    force
        Replace an existing file.

    Returns
    -------
    Trace
        The synthetic trace.

    Raises
    ------
    LayoutError
        If the size is not possible.
    TraceError
        If the source cannot be fitted or the output cannot be written.
    """
    single = isinstance(source, Trace | TrafficModel | str | Path)
    sources: Sequence[Source] = [source] if single else source  # type: ignore[list-item, assignment]
    if not copy:
        run = model_of(sources).sample(
            seed=seed,
            iterations=iterations,
            ranks=ranks,
            experts=experts,
            k=k,
            ep=ep,
            knobs=knobs,
        )
    elif len(sources) > 1 or isinstance(sources[0], TrafficModel):
        raise LayoutError("one trace is copied, but a model or several are given")
    else:
        trace = Trace.open(sources[0])
        run = copy_of(trace, seed=seed, iterations=iterations, ranks=ranks, ep=ep)
    if not times:
        run = replace(run, times=None)
    if output is not None:
        run.write(output, force=force)
        return Trace.open(output)
    with TemporaryDirectory(prefix="moetraffic-") as folder:
        path = Path(folder) / "synthetic.h5"
        run.write(path)
        return Trace.open(path)  # which stays open without its name
