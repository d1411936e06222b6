"""A traffic model: scenario and surrogate of runs, and its HDF5 file.

Root attributes of a file are ``format`` = "moetraffic-model" and ``version`` = 11.  The
dataset ``scenario`` is JSON; each array of the surrogate is a dataset with named axes.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from moetraffic import data
from moetraffic.errors import AnalysisError, LayoutError, TraceError
from moetraffic.files import validate_output, write_errors, write_whole
from moetraffic.spelling import check_choice
from moetraffic.trace import Trace
from moetraffic.trace.storage import TraceFile, Writer

from .fit import fit
from .scenario import MOST, Exchange, Scenario, refuse_beyond, scenario_and_rows
from .surrogate import ARRAYS, Knobs, Surrogate, sample
from .times import CallTimes
from .write import SyntheticRun

KIND, VERSION = "moetraffic-model", 11


@dataclass(frozen=True, kw_only=True, eq=False)
class TrafficModel:
    """What samples are drawn from."""

    scenario: Scenario
    surrogate: Surrogate
    times: CallTimes | None = None  # of the first run; None: unknown, as of a file

    @property
    def runs(self) -> int:
        """Number of runs that it was fitted to."""
        return len(self.surrogate.level)

    @classmethod
    def fit(
        cls,
        traces: Sequence[Trace],
        *,
        iterations: range | None = None,
        tick: Callable[[int], None] = lambda done: None,
    ) -> TrafficModel:
        """Fit to one run, or to several reruns of one training together.

        Parameters
        ----------
        traces
            Data- and expert-parallel, with the routing of all their ranks.  Scenario
            and times are those of the first.
        iterations
            Those to learn from; None: all that every run has.
        tick
            Receives how many runs are fitted.

        Raises
        ------
        TraceError, AnalysisError
            If the routing of a trace is not known, a run is too short, or runs differ
            in size.
        """
        read = [scenario_and_rows(trace, iterations) for trace in traces]
        sizes = {
            (s.layers, s.slots, s.ranks, s.ep, s.experts, s.k, s.tokens)
            for s, _ in read
        }
        if len(sizes) > 1:
            raise AnalysisError(
                "runs of one training are fitted together, but these differ in layers, "
                "micro-batches, ranks, EP, experts, k or tokens: give reruns (capture "
                "--data-seed)"
            )
        scenario, counts = read[0][0], [rows for _, rows in read]
        surrogate = fit(counts, scenario.k, ep=scenario.ep, tick=tick)
        times = CallTimes.read(traces[0])
        return cls(scenario=scenario, surrogate=surrogate, times=times)

    def sample(
        self,
        *,
        seed: int = 0,
        iterations: int | None = None,
        ranks: int | None = None,
        experts: int | None = None,
        k: int | None = None,
        ep: int | None = None,
        knobs: Knobs | None = None,
    ) -> SyntheticRun:
        """Sample a run of new traffic; None: as fitted.

        Raises LayoutError if there cannot be such a run.
        """
        fitted = self.scenario
        scenario = fitted.scaled(ranks=ranks, experts=experts, k=k, ep=ep)
        count = self.surrogate.iterations if iterations is None else iterations
        refuse_beyond("iterations", count, MOST["iterations"])
        counts = sample(
            self.surrogate,
            iterations=count,
            seed=seed,
            ranks=scenario.rows,
            experts=scenario.experts,
            k=scenario.k,
            ep=scenario.ep,
            knobs=knobs,
        )
        runs = f"{self.runs} runs, " if self.runs > 1 else ""
        return SyntheticRun(
            counts=counts,
            fitted=fitted,
            scenario=scenario,
            seed=seed,
            source=f"surrogate fitted to {runs}{fitted.source}",
            times=self.times if scenario.ep == fitted.ep else None,
        )

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the model to a file; TraceError if it exists or the disk refuses."""
        path = Path(path)
        validate_output(path, force=force, error=TraceError)
        buffer = io.BytesIO()
        with h5py.File(buffer, "w", libver=("v110", "v110")) as file:
            writer = Writer(file, {"format": KIND, "version": VERSION})
            scenario = json.dumps(asdict(self.scenario), separators=(",", ":"))
            writer.put("scenario", [scenario], axes=("value",))
            writer.put("borders", self.surrogate.borders, "<i4", ("border",))
            for name, axes in ARRAYS.items():
                array = np.asarray(getattr(self.surrogate, name), np.float32)
                writer.put(f"surrogate/{name}", array, "<f4", axes)
        with write_errors(path, error=TraceError):
            write_whole(path, buffer.getbuffer())

    @classmethod
    def load(cls, path: str | Path) -> TrafficModel:
        """Read a model; TraceError if there is no such file or it is damaged."""
        with TraceFile(Path(path), KIND, VERSION) as file, file.reading("the model"):
            told = json.loads(file.text("scenario")[0])
            told["exchanges"] = tuple(
                Exchange(**x | {"phases": tuple(x["phases"])})
                for x in told["exchanges"]
            )
            scenario = Scenario(**told)
            sizes = {
                "layer": len(scenario.layers),
                "expert": scenario.experts,
            }
            arrays: dict[str, Any] = {}
            for name, axes in ARRAYS.items():
                array = file.column(f"surrogate/{name}", "<f4").astype(np.float64)
                for axis, length in zip(axes, array.shape, strict=True):
                    if sizes.setdefault(axis, length) != length:
                        raise ValueError(f"{name} has {length} of axis {axis}")
                if not np.isfinite(array).all():
                    raise ValueError(f"{name} has values that are not finite")
                arrays[name] = array
            borders = file.column("borders", "<i4").astype(np.int64)
            if len(borders) != sizes["knot"] + 1 or (np.diff(borders) < 1).any():
                raise ValueError("knots are not ascending")
            return cls(
                scenario=scenario,
                surrogate=Surrogate(
                    k=scenario.k,
                    tokens=scenario.tokens,
                    ranks=scenario.rows,
                    ep=scenario.ep,
                    borders=borders,
                    **arrays,
                ),
            )


def is_model(path: Path) -> bool:
    """Whether a file is a traffic model, of any version; False if it is unreadable."""
    with suppress(OSError), h5py.File(path) as file:
        return bool(file.attrs.get("format") == KIND.encode())
    return False


def preset_names() -> tuple[str, ...]:
    """Names of the shipped models."""
    names = (entry.name for entry in resources.files("moetraffic.data").iterdir())
    return tuple(sorted(re.findall(r"(?m)^traffic-(.*)\.h5$", "\n".join(names))))


def preset_model(name: str) -> TrafficModel:
    """Load a shipped model by its name; LayoutError if there is none."""
    check_choice("a shipped model", name, preset_names(), LayoutError)
    return TrafficModel.load(data.path(f"traffic-{name}.h5"))
