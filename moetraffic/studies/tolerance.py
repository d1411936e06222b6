"""Loss tolerance: training-loss increase by share of traffic dropped, and p*.

``python -m moetraffic.studies tolerance`` trains small models on virtual ranks, one for
each share of lost bytes and seed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from moetraffic.arrays import Float64
from moetraffic.capture.training import check_workload
from moetraffic.cli.output import progress
from moetraffic.cli.show import AsJson, Force, show
from moetraffic.cli.workload import WORKLOAD, describe
from moetraffic.errors import AnalysisError, Interrupted, MoetrafficError
from moetraffic.files import validate_outputs, write_text
from moetraffic.launch.environment import PARENT
from moetraffic.patterns import Dropping, Workload
from moetraffic.report.chart import LINE_COLORS, Axis, Chart, Panel, Rule, Series
from moetraffic.report.console.options import (
    Plot,
    Setting,
    field_options,
    option,
    positive_numbers,
    takes,
)
from moetraffic.report.write import json_text
from moetraffic.result import Result
from moetraffic.workload.training import PATTERNS, SITES

LOSS = field_options(
    Dropping,
    "Loss",
    {
        "site": f"Exchange that loses data: {', '.join(SITES)}.",
        "pattern": f"Loss pattern: {', '.join(PATTERNS)}.",
        "compensate": Setting("Scale what arrives by 1 / (1 - lost).", "--compensate"),
        "packet_bytes": "Payload of a packet in bytes.",
    },
)


def increases(shares: Sequence[float], losses: Float64, name: str = "") -> Result:
    """Estimate the loss increase at each dropped share and the largest tolerated share.

    ``losses`` ``[P, S]`` are final ones of each share (increasing, the first 0) and
    seed, nats a token.  A seed's runs start from the same parameters and see the same
    batches, so an increase is the difference to the seed's own run without drops.  Its
    95% interval is Student's, over seeds.  ``p_star`` is the largest share such that
    its upper bound, and that of all smaller shares, is below the standard deviation
    over seeds.

    Examples
    --------
    >>> losses = np.array([[2.0, 2.2], [2.0, 2.2], [3, 3.1]])
    >>> increases([0, 0.01, 0.1], losses).data["p_star"]
    0.01
    """
    if not len(shares) or shares[0] != 0 or (np.diff(shares) <= 0).any():
        raise AnalysisError(
            f"the shares increase from 0, but are {list(shares)}: add the run without "
            "drops"
        )
    seeds = losses.shape[1]
    if seeds < 2:
        raise AnalysisError(
            f"an interval over seeds needs 2 of them or more, but there is {seeds}: "
            "raise --seeds"
        )
    sigma = float(losses[0].std(ddof=1))
    paired = losses[1:] - losses[0]
    mean = paired.mean(axis=1)
    width = stdtrit(seeds - 1, 0.975) / np.sqrt(seeds) * paired.std(axis=1, ddof=1)
    tolerated = mean + width < sigma  # a loss that is NaN is not tolerated
    p_star = float(shares[int(np.logical_and.accumulate(tolerated).sum())])
    star = f"{100 * p_star:g}%" if p_star else "none of those tried"
    rows = {"share_lost": np.array(shares[1:]), "increase": mean}
    rows |= {"low": mean - width, "high": mean + width, "tolerated": tolerated}
    return Result(
        verb="tolerance",
        head=f"{name}: training loss on a lossy network, {seeds} seeds",
        tables={"increases": rows},
        screen=("increases",),
        captions={"increases": "nats a token, with 95% intervals"},
        verdict=(
            f"The largest tolerated share (p*) is {star}: up to it the interval ends "
            f"below the standard deviation over seeds, {sigma:.4f}.",
        ),
        data={"p_star": p_star, "sigma": sigma},
    )


@takes(loss=LOSS, chosen=WORKLOAD)
def tolerance(
    output: Path = option(
        Path("tolerance.json"), "JSON file, also after each training.", "-o", "--output"
    ),
    plot: Plot = None,
    nproc: int | None = option(None, "Number of virtual ranks.", shown="--ep, or 4"),
    percent: str = option("0.1,0.5,1,2,5,10,20", "Shares of the bytes to drop, in %."),
    seeds: int = option(3, "Number of trainings for each share.", min=2),
    workers: int | None = option(
        None, "Trainings at the same time.", shown="all cores"
    ),
    force: Force = False,
    as_json: AsJson = False,
    *,
    loss: dict[str, Any],
    chosen: dict[str, Any],
) -> None:
    """Measure how much the training loss rises when an exchange loses data.

    Example: python -m moetraffic.studies tolerance --site combine --iterations 100
    """
    validate_outputs((output, plot), force=force)
    what = "the shares to drop are percentages above 0 and below 100"
    dropped = positive_numbers(percent, what, "0.1,1,10", kind=float, below=100)
    shares = [0.0, *sorted({part / 100 for part in dropped})]
    base = describe(nproc or chosen["ep"] or 4, {**chosen, "virtual": True})
    dropping, runs = Dropping(**loss), list[dict[str, Any]]()
    check_workload(base, ranks=base.layout.world)
    plans = [
        replace(
            base,
            training=replace(base.training, seed=base.training.seed + seed),
            dropping=replace(dropping, share=share),
        )
        for share in shares
        for seed in range(seeds)
    ]
    losses = np.full(len(plans), np.nan)
    with progress("trainings", len(plans), quiet=as_json) as tick:
        try:
            for number, result in trained(plans, workers):
                plan, losses[number] = plans[number], result["loss"]
                share = plan.dropping.share
                runs.append({"share": share, "seed": plan.training.seed, **result})
                kept = Result(verb="tolerance", head="trainings", tables={"runs": runs})
                write_text(output, json_text([kept]) + "\n")
                words = f"{share:.3%} lost: training loss {result['loss']:.4f}"
                tick(len(runs), words)
        except KeyboardInterrupt:
            words = f"{len(runs)} of {len(plans)} trainings are kept in {output}"
            words = words if runs else "no training had finished"
            raise Interrupted(f"interrupted; {words}", signal.SIGINT) from None
    name = f"{dropping.pattern} lost at {dropping.site}"
    name += ", compensated" * dropping.compensate
    found = increases(shares, losses.reshape(len(shares), seeds), name)
    if plot is not None:
        from moetraffic.report import figures

        figures.save(increase_chart(found), plot)
    found = replace(found, tables={**found.tables, "runs": runs})
    show(found, as_json=as_json, output=output, force=True)


def increase_chart(found: Result) -> Chart:
    """Plot the loss increase over the dropped share, with confidence intervals."""
    frame, sigma = found.frame("increases"), found.data["sigma"]
    line = Series(
        x=100 * frame.share_lost,
        y=frame.increase,
        name="mean, with interval",
        marked=True,
        y_interval=(frame.low, frame.high),
    )
    rules = (Rule(y=0, dash="solid"), Rule(y=sigma, color=LINE_COLORS[1], dash="dash"))
    x = Axis(label="share lost [%]", log=True)
    y = Axis(label="loss increase [nats per token]")
    return Chart(
        title="Increase of the training loss over the share of lost data",
        source=f"{found.head}. Dashed: standard deviation over seeds, nothing lost",
        panels=(Panel(x=x, y=y, series=(line,), rules=rules),),
        height=420,
        width=700,
    )


def trained(
    plans: Sequence[Workload], workers: int | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Train workloads on virtual ranks, some at a time; yield the number and the
    results of each as it ends."""
    left = len(plans)
    module = ["-m", "moetraffic.launch", "-m", "moetraffic.models.lossy_training"]
    program = subprocess.Popen(
        [sys.executable, *module, *([str(workers)] if workers else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches this process, which ends it
        env=os.environ | {"OMP_NUM_THREADS": "1", PARENT: str(os.getpid())},
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        with program.stdin as file:
            file.writelines(plan.to_json() + "\n" for plan in plans)
        for line in program.stdout:
            left -= 1
            result = json.loads(line)
            if "error" in result:
                raise MoetrafficError(result["error"])
            yield result.pop("number"), result
    finally:
        program.kill()
        program.wait()
    if left:
        raise MoetrafficError("the trainings ended early: see the error above")
