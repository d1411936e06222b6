"""Summary of a replay in at most eight lines, of which the first can be quoted."""

from __future__ import annotations

import math

from moetraffic.analysis.intervals import LEVEL, WIDEST, Interval
from moetraffic.tables import Table, tables_of
from moetraffic.units import byte_size, duration, three_digits

from .call_times import WITHOUT_PHASE
from .result import LATE_S, NO_NIC, Fidelity, PartFidelity, Replay
from .summary_tables import counts, interval, replay_tables, verification

ALWAYS = 0.6
"""Share of operations from which one rank is said to be the last to call."""


@tables_of.register
def shown(replay: Replay) -> list[Table]:
    """List what a notebook shows of a replay: the summary, and all tables."""
    summary = Table(rows=[], notes=sentences(replay))
    return [summary, *(t for part in replay_tables(replay).values() for t in part)]


def sentences(replay: Replay) -> list[str]:
    """Summarize a replay: bandwidth, bytes, durations, ranks and reservations.

    Returns
    -------
    list of str
        At most seven lines; the names of further tables are the eighth.
    """
    r, found = replay, replay.fidelity
    lines = [quotation(r), _moved(r), _durations(r)]
    ranks = [] if r.ports is None else [f"{r.ports.sentence()}{_over_ports(r)}."]
    ranks += _last_to_call(r)
    if ranks:
        lines.append(" ".join(ranks))
    effects = []
    if found is not None and found.slowdown is not None:
        effects.append(_beside(found, found.slowdown))
    if found is not None and found.punctuality is not None:
        p = found.punctuality
        behind = f"{duration(p.behind_s)} behind" if p.behind_s > 0 else "on time"
        effects.append(
            "Against the scheduled issue times, operations were issued "
            f"{duration(p.error_p50_s)} off (median), {duration(p.error_p99_s)} (p99); "
            f"{p.late} of {p.scheduled} calls more than {duration(LATE_S)} late; rank "
            f"{p.worst_rank} ended {behind}."
        )
    if effects:
        lines.append(" ".join(effects))
    if doubts := _doubts(r):
        lines.append(f"Note: {'; '.join(doubts)}.")
    if r.out:
        lines.append(f"written: {r.out}")
    return lines


def quotation(replay: Replay) -> str:
    """State the busbw of the all-to-alls, or of all operations, in one line.

    With its interval, the ratio to the lower bound, the share of waiting, and the
    number of runs.
    """
    found = replay.fidelity
    part = None
    if found is not None:
        part = found.part("operation", "all_to_all") or found.part("all")
    if found is None or part is None or math.isnan(part.busbw_gbs):
        return "No byte crossed the network: no operation has bytes between ranks."
    name = "all-to-all" if part.by == "operation" else "all operations:"
    line = f"{name} busbw {_value(part.busbw, ' GB/s')}"
    refuted = _without_bound(replay)
    if not (refuted or math.isnan(part.over_bound.value)):
        over = _value(part.over_bound, "x")
        whose = "all-to-alls" if part.by == "operation" else "operations"
        judges = "; judge the network by this ratio"
        judges *= part.over_bound.determined and not found.bound_of.endswith(NO_NIC)
        line += (
            f", transfers {over} the lower bounds of these {whose} one by one "
            f"({found.bound_of}{judges})"
        )
    if not math.isnan(part.waiting):
        of = "these calls" if part.by == "operation" else "all calls"
        line += f", waiting for late ranks {part.waiting:.0%} of the time in {of}"
    apart = ""
    bare = next((p for p in found.parts if p.by == WITHOUT_PHASE), None)
    if part.by == "operation" and bare and bare.transfer_s and part.transfer_s:
        share = bare.transfer_s.total / part.transfer_s.total
        counted = bare.label == "(count exchange)"
        what = "exchanges of token counts (no phase)" if counted else bare.name
        apart = (
            f"; {bare.number} of its {part.number} calls are {what}: {share:.0%} "
            "of the transfer time"
        )
    return f"{refuted}{line}; {_interval(found, part, bound=not refuted)}{apart}."


def _beside(found: Fidelity, slowdown: Interval) -> str:
    """State how dense traffic slows all-to-alls, and whether its bytes do."""
    over = f"; {LEVEL:.0%} interval over iterations"
    text = (
        "Beside dense traffic, all-to-alls take "
        f"{interval(slowdown, 'x', over=over)} as long as alone"
    )
    if found.control is None or found.slowdown_by_bytes is None:
        return f"{text}."
    text += (
        "; beside its operations without bytes (processor alone) "
        f"{interval(found.control, 'x')}"
    )
    by_bytes = found.slowdown_by_bytes
    if math.isnan(by_bytes.low):
        return f"{text}."
    shown = "includes 1: no effect of its bytes is shown"
    if by_bytes.low > 1:
        shown = "is above 1: its bytes slow them"
    elif by_bytes.high < 1:
        shown = (
            "is below 1: the effect of its bytes is not determined, as none makes "
            "all-to-alls faster"
        )
    ratio = interval(by_bytes, "x", over=f"; {LEVEL:.0%} interval over pairs")
    return (
        f"{text}. With bytes they take {ratio} as long as without, in {found.pairs} "
        f"pairs of passes. This interval {shown}."
    )


def _last_to_call(r: Replay) -> list[str]:
    """Name the rank that calls last, if there is one: it is no sign of its port."""
    if r.straggler is None:
        return []
    text = (
        f"Straggler: rank {r.straggler} called last in {r.straggler_share:.0%} of "
        "operations (measured)"
    )
    if r.straggler_share < ALWAYS:
        text = (
            f"No rank called last in {ALWAYS:.0%} of operations or more: most often "
            f"rank {r.straggler}, in {r.straggler_share:.0%}"
        )
    slow = (
        "; transfers are timed from the last call, so being last does not indicate a "
        "slow port"
    )
    return [text + slow * bool(r.ports is not None and r.ports.slow) + "."]


def _without_bound(r: Replay) -> str:
    """State why no ratio to the given network's lower bound is stated; "" if one is.

    The replay ran elsewhere, or the network is faster than the given one: measured
    ports show it, and times below their lower bounds.
    """
    found = r.fidelity
    if found is None or not found.bound_of:
        return ""
    file, described, _ = found.bound_of.partition(": ")
    if not found.bound_hosts_match:
        one = len(set(r.nodes)) == 1
        where = "on one host" if one else "with other ranks on its hosts (by name)"
        network = file if described else f"the given network ({file})"
        return (
            f"This replay ran {where}, not on {network}: no ratio to its lower bound; "
        )
    part = found.part("operation", "all_to_all") or found.part("all")
    ratios = [p.over_bound for p in (part, found.part("iteration")) if p is not None]
    below = any((r.value if math.isnan(r.high) else r.high) < 1 for r in ratios)
    if not (below or found.bound_exceeded):
        return ""
    faster = f"{file} describes" if described else file
    return f"The network is faster than {faster}: its lower bound does not hold; "


def _over_pass(r: Replay) -> Interval | None:
    """The wall time over the lower bound of a pass, if the network can have it."""
    found = r.fidelity
    walls = None if found is None else found.part("iteration")
    if found is None or walls is None or found.bound_of.endswith(NO_NIC):
        return None
    if _without_bound(r):
        return None
    return None if math.isnan(walls.over_bound.value) else walls.over_bound


def _over_ports(r: Replay) -> str:
    """Compare operations with the bound of the ports if line 1 has no lower bound."""
    found = r.fidelity
    if found is None or (found.bound_of and not _without_bound(r)):
        return ""
    part = found.part("operation", "all_to_all")
    whose = "all-to-alls" if part is not None else "operations"
    part = part or found.part("all")
    if part is None or math.isnan(part.over_ports.value):
        return ""
    return f"; the {whose} take {_times(part.over_ports, found)} the bound of the ports"


def _times(ratio: Interval, found: Fidelity) -> str:
    """Format a ratio with its interval: over iterations if there is one run."""
    over = f"; {LEVEL:.0%} interval over iterations"
    return interval(ratio, "x", over=over * (found.runs == 1))


def _value(ratio: Interval, unit: str) -> str:
    """Format a value, or its interval if that is all that is known."""
    if ratio.determined:
        return f"{three_digits(ratio.value)}{unit}"
    return interval(ratio, unit)


def _interval(found: Fidelity, part: PartFidelity, *, bound: bool) -> str:
    """State the runs, and the intervals over them that are not stated as values."""
    both = (part.busbw, part.over_bound)[: 1 + bound]
    ranges = not all(ratio.determined for ratio in both)
    if found.runs == 1:
        text = "n = 1 run, no interval between runs (--repeat 5 gives one)"
        return text + "; ranges are over its iterations" * ranges
    ends = [
        f"{three_digits(ratio.low)} to {three_digits(ratio.high)}{unit}"
        for ratio, unit in zip(both, (" GB/s", "x"), strict=False)
        if ratio.determined and not math.isnan(ratio.low)
    ]
    text = f"n = {found.runs} runs" + f", {LEVEL:.0%} CI {', '.join(ends)}" * bool(ends)
    return text + f"; ranges are {LEVEL:.0%} CI" * ranges


def _moved(r: Replay) -> str:
    hosts = len(set(r.nodes))
    return (
        f"Replayed {counts(r.kinds)} of {r.source} in iterations {r.first_iteration} "
        f"to {r.last_iteration}, {byte_size(r.network_bytes)} between ranks, "
        f"{verification(r.verified)}; {r.ranks} rank{'s' * (r.ranks > 1)} on {hosts} "
        f"host{'s' * (hosts > 1)} (by name), {r.backend}, pace {r.pace}."
    )


def _durations(r: Replay) -> str:
    line = f"Wall time {duration(r.wall_s)}, sum of transfers {duration(r.transfer_s)}"
    if r.transfer_s > r.wall_s:
        line += " (transfers of different groups and streams overlap)"
    found = r.fidelity
    if found is None:
        return f"{line}."
    if found.runs > 1:
        line += f" (run {found.shown_run + 1} of {found.runs}, the median)"
    whole, over_pass, ratios = found.part("all"), _over_pass(r), []
    if over_pass is not None:
        ratios.append(
            f"wall time {_times(over_pass, found)} the lower bound of a pass, all "
            f"operations together ({duration(found.pass_bound_s)})"
        )
    if whole is not None and not math.isnan(whole.transfer_over_captured.value):
        ratios.append(
            f"transfers take {_times(whole.transfer_over_captured, found)} as long as "
            "captured"
        )
    if whole is not None and not math.isnan(whole.over_model.value):
        beyond = f" ({found.model_beyond})" if found.model_beyond else ""
        over = _times(whole.over_model, found)
        ratios.append(f"transfers take {over} the times of {found.model_of}{beyond}")
    return "; ".join([line, *ratios]) + "."


def _doubts(r: Replay) -> list[str]:
    doubts = [
        f"on {one.node}, other processes used {one} during the replay"
        for one in r.load
        if one.busy
    ]
    if r.left_out:
        doubts.append(f"not replayed: {counts(r.left_out)}")
    doubts += r.notes
    found = r.fidelity
    if found is not None:
        doubts += found.notes
        of_pairs = found.slowdown, found.control, found.slowdown_by_bytes
        of_runs, refuted = [_over_pass(r)], bool(_without_bound(r))
        for p in (found.part("operation", "all_to_all"), found.part("all")):
            if p is not None:
                of_runs += [p.busbw, *[p.over_bound] * (not refuted)]
        narrower = [
            f"--{option} {max(5, 4 * number)}"
            for option, number, every in (
                ("repeat", found.runs, of_runs),
                ("pairs", found.pairs, of_pairs),
            )
            if not all(ratio.determined for ratio in every if ratio is not None)
        ]
        if narrower:
            doubts.append(
                f"an interval whose ends differ by more than a factor of {WIDEST:g} "
                "determines no value; more passes on idle hosts narrow it: "
                f"{' '.join(narrower)}"
            )
    return doubts
