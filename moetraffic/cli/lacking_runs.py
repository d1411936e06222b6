"""Real runs that a validation lacks, and the command that captures them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from moetraffic.errors import LayoutError
from moetraffic.trace import Meta


def lacking_runs(
    missing: int,
    file: str,
    real: Sequence[Meta],
    like: Meta,
    *,
    resized: bool,
    used: Collection[int] = (),
    then: str = "",
) -> str:
    """Name runs that are to be captured, with the command, or why it is unknown.

    Parameters
    ----------
    missing
        How many.
    file, real
        Name of the first real run, and the metadata of all.
    like
        Metadata of a run of the wanted size: ranks, EP, experts, k.
    resized
        Whether that is another size than that of the real runs.
    used
        Data seeds that are taken.
    then
        Command that takes the captured files as its last arguments; "": none.
    """
    lacking = f"{missing} {'' if resized else 'further '}real run"
    lacking += "s" * (missing > 1)
    command, why = None, "not all given runs are of moetraffic capture"
    if all(meta.origin == "captured" and meta.workload for meta in real):
        why = "no options of moetraffic capture describe its workload"
        try:
            command = _command(real[0], "rerun$n.h5", like)
        except LayoutError as error:
            why = str(error)
    if command is None:
        return f"{lacking} like {file}; how to capture them is unknown: {why}"
    seeds = [n for n in range(1, missing + len(used) + 1) if n not in used][:missing]
    listed = " ".join(map(str, seeds))
    text = f"{lacking}: for n in {listed}; do {command} --data-seed $n; done"
    files = " ".join(f"rerun{n}.h5" for n in seeds)
    return f"{text}; {then} {files}" if then else text


def _command(real: Meta, output: str, like: Meta) -> str | None:
    """Return the command that captures a run of another size, without data seed."""
    from moetraffic.cli.workload import capture_command
    from moetraffic.patterns import Workload

    own, theirs = like.as_dict(), real.as_dict()
    sizes = {"world": "nproc", "experts": "experts", "k": "k"}
    size = {
        field: own[name] for name, field in sizes.items() if own[name] != theirs[name]
    }
    if like.ep != (like.world if "nproc" in size else real.ep):
        size["ep"] = like.ep  # without it all ranks are one group
    workload = Workload.from_json(real.workload)
    training = replace(workload.training, data_seed=None)
    workload = replace(workload, training=training)
    return capture_command(workload, output, every=real.every, **size)
