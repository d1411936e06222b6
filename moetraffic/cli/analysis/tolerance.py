"""``moetraffic tolerance``: how training loss depends on lost traffic."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.capture.training import check_workload
from moetraffic.cli.output import json_text, present, progress
from moetraffic.cli.workload import WORKLOAD, describe
from moetraffic.errors import Interrupted, MoetrafficError
from moetraffic.files import validate_outputs, write_text
from moetraffic.launch.environment import PARENT
from moetraffic.patterns import Dropping, Workload
from moetraffic.patterns.workloads.dropping import PATTERNS, SITES
from moetraffic.report.console.options import (
    APPEARANCE,
    AsJson,
    Force,
    Plot,
    Setting,
    field_options,
    option,
    positive_numbers,
    takes,
)
from moetraffic.tables import plain

LOSS = field_options(
    Dropping,
    "Loss",
    {
        "site": f"Exchange that loses data: {', '.join(SITES)}.",
        "pattern": f"Loss pattern: {', '.join(PATTERNS)}.",
        "compensate": Setting(
            "Scale what arrives by 1 / (1 - share lost).", "--compensate"
        ),
        "packet_bytes": "Payload of a packet in bytes.",
        "burst_packets": "Mean length of a burst of losses, in packets.",
    },
)


@takes(look=APPEARANCE, loss=LOSS, chosen=WORKLOAD)
def tolerance(
    output: Path = option(
        Path("tolerance.json"),
        "JSON file to write after each training.",
        "-o",
        "--output",
    ),
    plot: Plot = None,
    nproc: int | None = option(
        None, "Number of virtual ranks.", shown="as many as --ep, or 4"
    ),
    percent: str = option(
        "0.1,0.5,1,2,5,10,20",
        "Shares of the bytes to drop, in percent, separated by commas.",
        panel="Loss",
    ),
    seeds: int = option(3, "Number of trainings for each share.", panel="Loss", min=2),
    workers: int | None = option(
        None, "Number of trainings that run at the same time.", shown="all cores"
    ),
    force: Force = False,
    as_json: AsJson = False,
    *,
    loss: dict[str, Any],
    chosen: dict[str, Any],
    look: dict[str, Any],
) -> None:
    """Measure how much the training loss rises when an exchange loses data.

    Example: moetraffic tolerance --site combine --seeds 3 --iterations 100
    """
    validate_outputs((output, plot), force=force)
    what = "the shares to drop are percentages above 0 and below 100"
    example = "--percent 0.1,1,10"
    dropped = positive_numbers(percent, what, example, kind=float, below=100)
    shares = [0.0, *sorted({part / 100 for part in dropped})]
    base = describe(nproc or chosen["ep"] or 4, {**chosen, "virtual": True})
    dropping = Dropping(**loss)
    check_workload(base, ranks=base.layout.world)
    told: dict[str, Any] = {
        "workload": json.loads(base.to_json()),
        **{name: loss[name] for name in ("site", "pattern", "compensate")},
        "runs": [],
    }
    number = len(shares) * seeds
    with progress("trainings", number, quiet=as_json) as tick:

        def keep(done: int, run: Mapping[str, Any]) -> None:
            told["runs"].append(dict(run))
            write_text(output, json_text(told) + "\n")
            tick(done, f"{run['share']:.3%} lost: training loss {run['loss']:.4f}")

        try:
            losses = final_losses(
                base, dropping, shares, seeds=seeds, workers=workers, on_run=keep
            )
        except KeyboardInterrupt:
            kept = f"{len(told['runs'])} of {number} trainings are kept in {output}"
            said = kept if told["runs"] else "no training had finished"
            raise Interrupted(f"interrupted; {said}", signal.SIGINT) from None
    from moetraffic.report.results import tolerance as report
    from moetraffic.studies.tolerance import tolerance as estimate

    found = estimate(shares, losses)
    told |= plain(found)
    write_text(output, json_text(told) + "\n")
    title = f"{dropping.pattern} lost at {dropping.site}"
    title += ", compensated" if dropping.compensate else ""
    steps, ranks = base.training.iterations, base.layout.world
    source = f"{title}; {ranks} virtual ranks, {steps} iterations"
    present(
        told,
        report.sentence(found, title),
        report.table(found, title),
        as_json=as_json,
        written=(output,),
        chart=report.figure(found, source),
        plot=plot,
        look=look,
    )


def final_losses(
    base: Workload,
    dropping: Dropping,
    shares: Sequence[float],
    *,
    seeds: int,
    workers: int | None,
    on_run: Callable[[int, Mapping[str, Any]], None],
) -> Float64:
    """Train for each share of lost bytes and seed; return final losses ``[P, S]``.

    ``base`` is trained on virtual ranks, with S ``seeds`` that count from its own; the
    share of ``dropping`` is replaced by each of ``shares`` ``[P]``.  ``on_run`` is
    called after each training with the number of completed ones and its results.
    """
    plans = [
        replace(
            base,
            training=replace(base.training, seed=base.training.seed + seed),
            dropping=replace(dropping, share=share),
        )
        for share in shares
        for seed in range(seeds)
    ]
    losses, count = np.full((len(shares), seeds), np.nan), 0
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
        for count, line in enumerate(program.stdout, 1):
            result = json.loads(line)
            if "error" in result:
                raise MoetrafficError(result["error"])
            share, seed = divmod(result.pop("number"), seeds)
            losses[share, seed] = result["loss"]
            number = base.training.seed + seed
            on_run(count, {"share": shares[share], "seed": number, **result})
    finally:
        program.kill()
        program.wait()
    if count < len(plans):
        raise MoetrafficError("the trainings ended early: see the error above")
    return losses
