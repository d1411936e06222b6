"""Choice, fit and judgment of a generator for a captured trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from moetraffic.errors import LayoutError
from moetraffic.trace import Meta, Trace

from .analog.analog import FIT_STEPS, Analog
from .generator import Demand
from .judgment import SAMPLES, Judgment, judge
from .parametric.model import TrafficModel
from .scenario import Scenario, scenario_of


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of a synthetic run; None: as captured."""

    ranks: int | None = None
    experts: int | None = None
    k: int | None = None
    ep: int | None = None

    def same_experts(self, scenario: Scenario) -> bool:
        """Whether experts and k are those captured; ranks and EP may be others."""
        return self.experts in (None, scenario.experts) and self.k in (None, scenario.k)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted generator."""

    name: str  # analog or parametric
    model: Analog | TrafficModel
    judgment: Judgment | None = None  # None: not judged
    run: Meta | None = None  # of the fitted trace; None: the model was given


def fit_steps(reruns: int, *, judged: bool) -> int:
    """Count the steps of a fit and its judgment, of which progress is reported."""
    return FIT_STEPS + (1 + reruns + SAMPLES if judged else 0)


def fit_trace(
    trace: Trace,
    kind: str = "",
    *,
    size: Size | None = None,
    reruns: Sequence[Trace] = (),
    judged: bool = True,
    tick: Callable[[int, str], None] = lambda done, doing: None,
) -> Fit:
    """Fit a generator to a trace, and judge it at the captured size.

    Parameters
    ----------
    trace
        Data- and expert-parallel, with the routing of all its ranks.
    kind
        ``analog`` or ``parametric``; empty: parametric for other experts or another k,
        else analog.
    size
        Of the synthetic run; None: as captured.
    reruns
        Traces of runs of the same initialization with other data.
    judged
        Sample twice and compare with the run and its reruns.
    tick
        Receives how many of :func:`fit_steps` are done, and what is done.

    Raises
    ------
    LayoutError
        If the size is impossible, or not one of the analog generator.
    MoetrafficError
        If the trace cannot be fitted.
    """
    scenario, _ = scenario_of(trace)
    size = size or Size()
    scenario.scaled(**asdict(size))  # an impossible size ends here, before the fit
    same = size.same_experts(scenario)
    name = kind or ("analog" if same else "parametric")
    if name == "analog" and not same:
        raise LayoutError(
            f"the analog model samples the captured {scenario.experts} experts and "
            f"k={scenario.k}, but others are asked for: give --model parametric, or "
            "capture such a run (moetraffic capture --virtual)"
        )

    def step(done: int) -> None:
        tick(done, "judging" if done >= FIT_STEPS else "")

    model: Analog | TrafficModel
    if name == "analog":
        model = Analog.fit(trace, reruns=reruns, tick=step)
    else:
        model = TrafficModel.fit(trace, tick=step)

    judgment = None
    if judged:

        def sample(number: int) -> Demand:
            return model.sample(iterations=model.fitted, seed=number)

        judgment = judge(sample, trace, reruns, lambda done: step(FIT_STEPS + done))
    return Fit(name=name, model=model, judgment=judgment, run=trace.meta)
