"""``moetraffic tolerance``: how much loss of traffic a training bears."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from moetraffic.errors import Interrupted, LayoutError
from moetraffic.launch.lossy_training import final_losses
from moetraffic.launch.machine_resources import check_workload
from moetraffic.patterns import Dropping
from moetraffic.patterns.dropping import PATTERNS, SITES
from moetraffic.trace.hdf5.durable import validate_outputs

from .choices import picture
from .output import console, print_json, progress
from .workload import describe, takes_workload

PERCENTAGES = "0.1,0.5,1,2,5,10,20"
DROPS = Dropping()


@takes_workload
def tolerance(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="JSON to write, kept run by run.")
    ] = Path("tolerance.json"),
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Picture to write (PNG).")
    ] = None,
    nproc: Annotated[
        int | None,
        typer.Option(help="Virtual ranks.", show_default="as many as --ep, or 4"),
    ] = None,
    site: Annotated[
        str, typer.Option(help=f"Where it is lost: {', '.join(SITES)}.")
    ] = DROPS.site,
    pattern: Annotated[
        str, typer.Option(help=f"What is lost: {', '.join(PATTERNS)}.")
    ] = DROPS.pattern,
    percent: Annotated[
        str, typer.Option(help="Shares of the bytes to drop, in percent.")
    ] = PERCENTAGES,
    compensate: Annotated[
        bool, typer.Option("--compensate", help="Scale what arrives by 1/(1-p).")
    ] = False,
    packet_bytes: Annotated[
        int, typer.Option(help="Payload of a packet.")
    ] = DROPS.packet_bytes,
    burst_packets: Annotated[
        float, typer.Option(help="Mean length of a burst of losses, in packets.")
    ] = DROPS.burst_packets,
    seeds: Annotated[int, typer.Option(help="Trainings for each share.")] = 3,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Trainings that run beside each other.", show_default="the cores"
        ),
    ] = None,
    force: Annotated[bool, typer.Option(help="Overwrite the output.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    chosen: dict[str, Any],
) -> None:
    """Train with a lossy network at one site, and say how much the loss rises.

    Example: moetraffic tolerance --site combine --seeds 3 --iterations 100
    """
    validate_outputs((output, plot), force=force)
    if seeds < 2:
        raise LayoutError(
            f"an interval over seeds needs 2 or more, but seeds is {seeds}: raise it"
        )
    shares = [0.0, *_shares(percent)]
    base = describe(nproc or chosen["ep"] or 4, {**chosen, "virtual": True})
    dropping = Dropping(
        site=site,
        pattern=pattern,
        compensate=compensate,
        packet_bytes=packet_bytes,
        burst_packets=burst_packets,
    )
    check_workload(base, ranks=base.layout.world)
    told: dict[str, Any] = {
        "workload": json.loads(base.to_json()),
        "site": site,
        "pattern": pattern,
        "compensate": compensate,
        "runs": [],
    }
    number = len(shares) * seeds
    with progress("trainings", number, quiet=as_json) as tick:

        def keep(done: int, run: Mapping[str, Any]) -> None:
            told["runs"].append(dict(run))
            _write(output, told)
            tick(done, f"{run['share']:.3%} dropped: loss {run['loss']:.4f}")

        try:
            losses = final_losses(
                base, dropping, shares, seeds=seeds, workers=workers, on_run=keep
            )
        except KeyboardInterrupt:
            kept = f"{len(told['runs'])} of {number} trainings are kept in {output}"
            said = kept if told["runs"] else "no training had ended"
            raise Interrupted(f"interrupted; {said}", signal.SIGINT) from None
    from moetraffic.analysis.tolerance import tolerance as estimate
    from moetraffic.report import figures
    from moetraffic.report import tolerance as report

    found = estimate(shares, losses)
    told |= report.as_dict(found)
    _write(output, told)
    title = f"{pattern} dropped at {site}" + (", compensated" if compensate else "")
    if plot is not None:
        steps, ranks = base.training.iterations, base.layout.world
        source = f"{title}; {ranks} virtual ranks, {steps} iterations"
        figures.save(report.figure(found, source), plot)
    if as_json:
        print_json(told)
    else:
        console.print(report.table(found, title))
        console.print(f"{output}" + (f", {plot}" if plot is not None else ""))


def _shares(percent: str) -> list[float]:
    try:
        shares = sorted({float(part) / 100 for part in percent.split(",")})
    except ValueError:
        shares = []
    if not shares or not 0 < shares[0] <= shares[-1] < 1:
        raise LayoutError(
            "the shares to drop are percentages above 0 and below 100 with commas "
            f"between, but are {percent!r}: give --percent 0.1,1,10"
        )
    return shares


def _write(path: Path, told: dict[str, Any]) -> None:
    path.write_text(json.dumps(told, indent=1) + "\n")
