"""Figures of each room of moetraffic, by plain keys: the adapters of ``parity.py``.

Each section maps the present API of one room to keys and values that stay when the API
changes; a change of the API rewrites its section.  moetraffic is imported inside of the
functions, so that a room that cannot be imported does not keep the others from running.

A room yields keys ``INPUT/ROOM/...`` with functions that compute a value, or nested
mappings of values by name.  Values are those of :func:`figure`.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import tomllib

# sums of floats must not depend on the number of threads
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

FILES = Path(__file__).resolve().parent / "parity"
INPUTS = tomllib.loads((FILES / "inputs.toml").read_text())
Cases = Iterator[tuple[str, Callable[[], Any]]]

# ---- inputs and plain values ---------------------------------------------------------


def file_of(name: str) -> Path:
    """Return the path of an input by its name."""
    from moetraffic import data

    if name == "golden":
        return data.path("golden-uncounted.h5")
    return data.path(f"{name}.h5") if name in INPUTS["runs"] else FILES / f"{name}.h5"


def open_trace(name: str) -> Any:
    """Open an input by its name."""
    from moetraffic import Trace

    if not file_of(name).is_file():
        raise FileNotFoundError(f"the input {name} is missing: restore {file_of(name)}")
    return Trace.open(file_of(name))


def first(trace: Any, number: int) -> range:
    """Return the first training iterations of a trace."""
    iterations = trace.iterations[:number]
    return range(int(iterations[0]), int(iterations[-1]) + 1)


def fields(of: Any, names: str) -> dict[str, Any]:
    """Return attributes by name."""
    return {name: getattr(of, name) for name in names.split()}


def flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings with their keys."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from flat(f"{key}/{name}", part)
    else:
        yield key, figure(value)


def figure(value: Any) -> Any:
    """Convert a value to what is stored: numbers, texts, and summaries of arrays."""
    if isinstance(value, np.ndarray) and value.ndim:
        return summary(value)
    if isinstance(value, np.ndarray | np.generic):
        return figure(value.item())
    if isinstance(value, Iterator):
        lines = [str(line) for line in value]
        return {"texts": len(lines), "sha256": digest("\n".join(lines).encode())}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return [figure(item) for item in value]


def summary(values: Any) -> dict[str, Any]:
    """Summarize an array: of integers with a digest, of floats by sums."""
    if values.dtype.kind in "OUST":
        return dict(figure(map(str, values.ravel().tolist())))
    shape = list(values.shape)
    if values.dtype.kind in "biu":
        whole = np.ascontiguousarray(values, "<i8")
        total, most = int(whole.sum()), int(whole.max(initial=0))
        nonzero, content = int(np.count_nonzero(whole)), digest(whole.tobytes())
        found = {"shape": shape, "sum": total, "max": most, "nonzero": nonzero}
        return {**found, "sha256": content}
    cells = values.astype(np.float64).ravel()
    place = np.flatnonzero(np.isfinite(cells))
    known = cells[place]
    return {
        "shape": shape,
        "known": len(known),
        "sum": math.fsum(known),
        "absolute": math.fsum(np.abs(known)),
        "squares": math.fsum(known**2),
        "by_place": math.fsum(known * (place + 1.0) / max(len(cells), 1)),
        "max": figure(known.max(initial=-math.inf)),
    }


def digest(content: bytes) -> str:
    """Return the beginning of the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()[:16]


# ---- trace ---------------------------------------------------------------------------

NOT_KEPT = frozenset({"created", "moetraffic", "torch", "python", "workload", "source"})
"""Metadata that differ between machines, or whose form is not of interest to users."""

PHASES = ("dispatch", "combine", "combine_grad", "dispatch_grad")


def site_names(trace: Any) -> list[str]:
    """Name each call site by what it is; equal names get numbers."""
    names: list[str] = []
    seen: dict[str, int] = defaultdict(int)
    for site in trace.sites:
        group = trace.groups[site.group]
        what = f"{site.operation}/{site.phase or site.label or 'unnamed'}"
        where = f"layer{site.layer}/{site.direction or 'unknown'}{site.slot}"
        name = f"{what}/{where}/{group.kind}-{'.'.join(map(str, group.ranks))}"
        if min(site.peers) >= 0:
            name += "-from{}to{}".format(*site.peers)
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def content(trace: Any, read: Callable[[Any], Any], calls: Any) -> Any:
    """Read bytes or copies of calls: absent is -1, never 0; unknown is a text."""
    from moetraffic.errors import TraceError

    try:
        values = np.array(read(calls), np.int64)
    except TraceError:
        return "unknown"
    values[~trace.present(calls)] = -1
    return values


def sent(trace: Any, number: int, calls: Any) -> Any:
    """Read the bytes of a site's calls, or the demand of its routings."""
    read = {"routing": trace.demand, "all_to_all": trace.wire}
    return content(trace, read.get(trace.sites[number].operation, trace.volume), calls)


def site_figures(trace: Any, number: int) -> dict[str, Any]:
    """Return what a trace holds of the calls of one site."""
    site = trace.sites[number]
    calls = np.flatnonzero(trace.occurrences.site == number)
    found = fields(site, "dtype row_bytes experts source")
    found["iterations"] = trace.occurrences.iteration[calls]
    found["sequence"] = trace.occurrences.sequence[calls]
    presence = trace.presence(calls)
    found["present"] = trace.present(calls)
    found["recorded"] = np.isin(presence, (1, 3))
    found["recovered"] = presence == 2
    found["demand" if site.operation == "routing" else "bytes"] = sent(
        trace, number, calls
    )
    if site.operation == "routing":
        found["dropped"] = content(trace, trace.dropped, calls)
        if site.token_sample:
            from moetraffic.trace.choices import expert_mask

            found["token_sample"] = expert_mask(trace.chosen(calls), site.experts)
    names = ("issue", "start", "end")
    found["times"] = dict(zip(names, trace.times(calls), strict=True))
    return found


def matrices(trace: Any) -> dict[str, Any]:
    """Return matrices between ranks of a training iteration, as users ask for them."""
    from moetraffic.errors import TraceError

    found: dict[str, Any] = {}
    for layer in trace.layers if len(trace.iterations) else ():
        middle = int(trace.iterations[len(trace.iterations) // 2])
        for phase in PHASES:
            for unit in (("wire", "bytes"), ("demand", "tokens")):
                named = dict(zip(("of", "unit"), unit, strict=True), space="world")
                key = f"layer{layer}/{phase}/{unit[0]}"
                try:
                    found[key] = np.asarray(trace.matrix(middle, layer, phase, **named))
                except TraceError:
                    found[key] = "unknown"
    return found


def trace_figures(trace: Any) -> dict[str, Any]:
    """Return all that a trace holds; what was timed is under keys with times."""
    steps, names, occurrences = trace.steps, site_names(trace), trace.occurrences
    columns = ("group", "layer", "expert", "replica", "rank", "valid_from")
    placed = np.stack([np.asarray(trace.placements[c], np.int64) for c in columns])
    clocks = [trace.clocks[name] for name in trace.clocks.dtype.names or ()]
    orders = {}
    for rank in range(trace.meta.world):
        calls = trace.order(rank)
        pairs = zip(occurrences.iteration[calls], occurrences.site[calls], strict=True)
        orders[f"rank{rank}"] = (f"{when} {names[site]}" for when, site in pairs)
    table = trace.calls()
    return {
        "meta": {k: v for k, v in trace.meta.as_dict().items() if k not in NOT_KEPT},
        "steps": fields(steps, "iteration source tokens loss"),
        "kinds": iter(steps.kind),
        "layers": trace.layers,
        "groups": iter(sorted(f"{g.kind} {list(g.ranks)}" for g in trace.groups)),
        "placement": placed[:, np.lexsort(placed[::-1])],
        "sites": {name: site_figures(trace, n) for n, name in enumerate(names)},
        "order": orders,
        "matrix": matrices(trace),
        "times/clocks": np.array(clocks, np.int64),
        "times/steps": np.stack([steps.start, steps.end]),
        "times/calls": {c: table[c].to_numpy(float) for c in ("issue_s", "end_s")},
    }


def trace_room() -> Cases:
    """Yield the content of all inputs."""
    for name in (*INPUTS["runs"], *INPUTS["captures"], *INPUTS["others"]):
        yield f"{name}/trace", lambda name=name: trace_figures(open_trace(name))


# ---- traces on other ranks, with other bytes or another placement --------------------


def derived(trace: Any) -> dict[str, Any]:
    """Return bytes and demand of a derived trace, by operation and phase."""
    parts: dict[str, list[tuple[str, Any, Any]]] = defaultdict(list)
    for number, name in enumerate(site_names(trace)):
        calls = np.flatnonzero(trace.occurrences.site == number)
        values = np.ravel(sent(trace, number, calls))
        values = np.array([-1]) if values.dtype.kind == "U" else values
        parts["/".join(name.split("/")[:2])].append(
            (name, values, trace.present(calls))
        )
    found = fields(trace.meta, "world ep") | fields(
        trace.steps, "iteration loss tokens"
    )
    for named, sites in parts.items():
        sites.sort(key=lambda site: site[0])
        found[named] = {
            "sites": (name for name, _, _ in sites),
            "values": np.concatenate([values for _, values, _ in sites]),
            "present": np.concatenate([present.ravel() for _, _, present in sites]),
        }
    return found


def scaling(options: Mapping[str, Any]) -> Any:
    """Make the options of a rescaled trace."""
    from moetraffic.trace.what_if.rescale import Scaling, factor_of

    factor = {"factor": factor_of(options["factor"])} if "factor" in options else {}
    return Scaling(**{**options, **factor})


def what_if_room() -> Cases:
    """Yield traces of the same run on other ranks, with other bytes or placements."""
    from moetraffic import place
    from moetraffic.trace.what_if.rescale import rescale

    def rescaled(name: str, options: Mapping[str, Any]) -> Any:
        return derived(rescale(open_trace(name), scaling(options)))

    for name in ("ep4-dropped", "ep2-dp4", "ep4-token-sample", "incomplete"):
        for label, options in INPUTS["what-if"].items():
            if ("missing" in options) == (name == "incomplete"):
                yield f"{name}/what-if/{label}", partial(rescaled, name, options)
    for name in ("run-top2-unbalanced", "ep8-loss-free", "ep4-dropped"):
        for label, options in INPUTS["place"].items():
            placed = partial(place, file_of(name), **options)
            yield f"{name}/what-if/place-{label}", lambda made=placed: derived(made())


# ---- analysis ------------------------------------------------------------------------

MEASURE_KEYS = {
    "entropy": "normalized_entropy",
    "entropy_bits": "entropy",
    "max_mean": "max_over_mean",
    "zero": "sparsity",
}
"""Keys of measures whose names have changed."""

COLUMN_KEYS: dict[str, dict[str, str]] = {
    "expert_load": {
        "max_mean": "run.max_over_mean",
        "starved": "run.starved",
        "dropped": "run.dropped",
        "capacity_factor": "run.capacity_factor_of_drops",
        "dropless_factor_by_rank": "run.dropless_capacity_factor_by_rank",
        "dropless_factor_of_all": "run.dropless_capacity_factor_of_all",
    },
    "experts.load": {f"load_{q}": q for q in ("p50", "p90", "p99")},
    "experts.bottleneck_bytes": {f"bottleneck_{q}": q for q in ("p50", "p90", "p99")},
    "network": {
        name: name
        for name in (
            *("inter_host", "inter_host_uniform", "line_efficiency"),
            *("bottleneck_bytes", "nic_flows", "largest_flows_byte_share"),
            "largest_flows_number_share",
        )
    },
    "packets": {
        **{
            name: name
            for name in (
                *("temporal", "temporal_corrected", "non_temporal"),
                *("trace_complexity", "entropy_bits", "bits", "shuffled_bits"),
                *("uniform_bits", "pairs"),
            )
        },
        "packets": "records",
    },
    "hot_experts": {
        "hot": "k",
        "experts": "of",
        "hot_retained": "overlap",
        "hot_retained_by_chance": "random_overlap",
    },
}
"""Keys of columns, by the subject that the values are kept of."""

BURST_KEYS = (
    *("duty", "bursts", "burst_ns", "burst_cv", "gap_ns", "gap_cv", "period_ns"),
    *("peak_to_mean", "jitter", "acf", "cycle_ns", "cycles", "observed_ns"),
)


def analyze_room() -> Cases:
    """Yield statistics of runs, and distances of two."""
    from moetraffic import analyze, compare

    def analyzed(name: str, number: int) -> Any:
        trace = open_trace(name)
        return dict(statistics(analyze(trace, iterations=first(trace, number))))

    def compared(a: str, b: str) -> Any:
        result = compare(file_of(a), file_of(b), iterations=range(40))
        return {"identical": bool(result.data["identical"])} | {
            f"{layer_name(row['layer'])}/{distance_key(row)}": {
                "a": row["first"],
                "b": row["second"],
                "value": row["distance"],
                "observations": row["observations"],
            }
            for row in result.tables.rows("distances")
        }

    for name, number in INPUTS["analyze"].items():
        yield f"{name}/analyze", partial(analyzed, name, number)
    for a, b in INPUTS["compare"].items():
        yield f"{a}/analyze/compared-with-{b}", partial(compared, a, b)


def distance_key(row: Any) -> str:
    """Name what a distance is of, and its measure."""
    subject, measure = row["subject"], row["measure"]
    if measure == "share":
        names = {
            "expert_load": "expert load",
            "demand": "demand matrix",
            "wire": "wire matrix",
            "sent": "bytes sent by rank",
            "received": "bytes received by rank",
        }
        return f"{names[subject]}/total variation"
    if measure == "amount":
        return f"{subject} per iteration/relative difference"
    if measure == "duration":
        other = "all-to-alls without a phase"
        return f"duration of {subject or other}/relative difference"
    name = MEASURE_KEYS.get(measure, measure).replace("_", " ")
    return f"{name} of {subject}/Wasserstein-1"


def layer_name(layer: int) -> str:
    """Name a layer, or the whole run."""
    return f"layer{layer}" if layer >= 0 else "run"


def statistics(result: Any) -> Iterator[tuple[str, Any]]:
    """Yield the kept statistics of an analysis from its tables."""

    def place(row: Any) -> str:
        name = layer_name(row["layer"])
        return f"group{row['group']}/{name}" if row["group"] > 0 else name

    def rows_of(table: str) -> Any:
        return result.tables.rows(table) if table in result.tables else []

    kept = INPUTS["statistics"]
    by = ["layer", "group", "subject", "measure"]
    for (layer, group, subject, measure), rows in result.frame("measures").groupby(by):
        key = MEASURE_KEYS.get(measure, measure)
        if key not in kept[subject] or (subject, key) == ("received", "entropy"):
            continue
        name = f"{place({'layer': layer, 'group': group})}/{subject}/{key}"
        values = rows.sort_values("iteration").value.to_numpy(float)
        yield name, {"by_iteration": values, "mean": values.mean()}
        if rows.balanced.notna().any():
            yield f"{name}/noise_floor", rows.balanced.mean()
    for row in rows_of("forecasts"):
        if row["subject"] in kept and row["method"] in INPUTS["forecasts"]["of"]:
            for column, key in (("mse",) * 2, ("nmse",) * 2, ("below_mean", "skill")):
                name = f"{place(row)}/{row['subject']}/{key}"
                yield f"{name}/{row['method']}-{row['horizon']}", row[column]
    tables = {"network": "network", "packets": "complexity"}
    tables["experts.bottleneck_bytes"] = "network"
    for subject, columns in COLUMN_KEYS.items():
        for row in rows_of(tables.get(subject, "experts")):
            for column, key in columns.items():
                yield f"{place(row)}/{subject}/{key}", row[column]
    for row in rows_of("ep_degrees"):
        yield f"{place(row)}/experts at EP {row['ep']}/max_over_mean", row["max_mean"]
    for row in rows_of("hosts"):
        subject = "experts"
        if row["placement"] == "captured":
            yield f"{place(row)}/{subject}/sampled_tokens", row["sampled_tokens"]
        else:
            subject = f"experts on {row['hosts']} hosts"
        yield f"{place(row)}/{subject}/hosts_per_token", row["hosts_per_token"]
    for row in rows_of("bursts"):
        source = f"phase {row['source']}" if row["by"] == "phase" else row["source"]
        for key in BURST_KEYS:
            yield f"run/{source}/{key}", row[key]
    for row in rows_of("times"):
        for part in ("compute", "overlapped", "transfer", "waiting"):
            yield f"run/rank {row['rank']}/share_of_time.{part}", row[part]
    for row in rows_of("within"):
        name = f"run/layer {row['layer']} from the first dispatch"
        yield f"{name}/equal_share", row["equal_share"]
        yield f"{name}/mse", row["mse"]
        yield f"{name}/skill", row["below_past"]


# ---- networks and policies -----------------------------------------------------------


def fabric_room() -> Cases:
    """Yield link loads, times and bounds on networks."""
    from moetraffic.analysis.times.traffic import world_matrices
    from moetraffic.fabric import assess, collisions, load_fabric, route

    def assessed(name: str, label: str, routing: str) -> Any:
        trace, (topology, options) = open_trace(name), INPUTS["networks"][label]
        traffic = world_matrices(trace, trace.iterations[:4].tolist())
        network = load_fabric(topology, trace.meta.world, capacity="100Gbps", **options)
        data = assess(network, traffic, routing=routing)
        links = data.frame("loads")
        links[["source", "destination"]] = links.link.str.split(" -> ", expand=True)
        links = links.sort_values(["source", "destination", "iteration"])
        sets = []
        if routing == "ecmp":
            sets = collisions(route(network), traffic)
        return {
            "bottleneck_s": data.data["bottleneck_s"],
            "bound_s": data.data["same_nics_bound_s"],
            "ideal_s": data.data["even_split_s"],
            "bytes_between_hosts": data.data["bytes_between_hosts"],
            "matrices": traffic,
            "links": len(network.links),
            "loads": links.bytes.to_numpy(float),
            "times": links.time_s.to_numpy(float),
            "bounds": data.data["bounds_s"],
            "collisions": len(sets),
        }

    for name in ("run-top2-unbalanced", "run-top8-balanced", "own-settings", "ep16"):
        for label in INPUTS["networks"]:
            for routing in ("ecmp", "ideal"):
                yield (
                    f"{name}/fabric/{label}/{routing}",
                    partial(assessed, name, label, routing),
                )


SCORES = """completion_p50_s completion_p99_s completion_mean_s over_bound regret
exchanges served_share reconfigurations moved_experts moved_bytes load_imbalance"""


def policies_room() -> Cases:
    """Yield completion times of policies, and circuit schedules."""
    from moetraffic import circuits
    from moetraffic.policies.evaluate import evaluate

    def evaluated(
        name: str, policies: str, timing: Mapping[str, int], networks: Mapping[str, Any]
    ) -> Any:
        found = evaluate(
            file_of(name),
            policies,
            **networks,
            forecasters=("persistence", "mean", "oracle"),
            iterations=range(32),
            layers=[1, 2],
            most=8,
            **timing,
        )
        return {"failures": found.data["failures"]} | {
            f"{row['policy']}/{row['forecaster']}": {s: row[s] for s in SCORES.split()}
            for row in found.rows("scores")
        }

    def scheduled(name: str) -> Any:
        plans = circuits(file_of(name), iterations=range(6))
        return {
            f"{layer_name(plan.layer)}/{plan.name}/{n}": fields(
                schedule, "permutations weights served"
            )
            for plan in plans
            for n, schedule in enumerate(plan.schedules)
        }

    for name in ("run-top2-unbalanced", "run-top8-lossfree"):
        for label, options in INPUTS["policies"].items():
            yield f"{name}/policies/{label}", partial(evaluated, name, *options)
        yield f"{name}/policies/schedule", partial(scheduled, name)


# ---- replay --------------------------------------------------------------------------


def replay_room() -> Cases:
    """Yield plans of replays, without starting ranks."""
    from moetraffic.replay.options import Options
    from moetraffic.replay.plan.program import programs
    from moetraffic.replay.run import planned as plan_of

    def planned(name: str, given: Mapping[str, Any]) -> Any:
        options = dict(given)
        if "scaling" in options:
            options["scaling"] = scaling(options["scaling"])
        if "iterations" in options:
            options["iterations"] = range(*options["iterations"])
        if "background" in options:
            options["background"], options["model"] = options["background"]
        asked = Options(trace=file_of(name), **options)
        trace, plan = plan_of(asked, open_trace(name))
        return plan_figures(plan, programs(trace, plan, range(plan.world)))

    for name in (
        "own-settings",
        "ep4-dropped",
        "ep2-dp4",
        "ep2-tp2",
        "ep2-pp2",
        "ep2-zero3",
    ):
        for label, options in INPUTS["replay"].items():
            yield f"{name}/replay/{label}", partial(planned, name, options)


def plan_figures(plan: Any, programs: Mapping[int, Any]) -> dict[str, Any]:
    """Return operations, bytes, order and times of a replay plan, by rank."""
    from moetraffic.replay.plan.operations import KINDS

    def order(program: Any) -> Iterator[str]:
        for n, operation in enumerate(program.operation.tolist()):
            site, group = (
                plan.sites[plan.site[operation]],
                plan.groups[program.group[n]],
            )
            yield (
                f"{plan.iteration[operation]} {KINDS[program.kind[n]]} "
                f"{site.phase or site.label} {site.layer} {site.slot} {list(group)} "
                f"{plan.sender[operation]} {plan.receiver[operation]}"
            )

    found: dict[str, Any] = {"left_out": plan.left_out}
    for kind in sorted(set(plan.kind.tolist())):
        of = plan.kind == kind
        sizes = fields(plan, "total_bytes network_bytes bottleneck_bytes")
        found[KINDS[kind]] = {name: int(size[of].sum()) for name, size in sizes.items()}
        found[KINDS[kind]]["operations"] = int(of.sum())
    for rank, program in programs.items():
        sizes = fields(program, "send_size receive_size send_bytes receive_bytes")
        times = fields(program, "stream after gap_ns due_ns")
        found[f"rank{rank}"] = {"order": order(program), **sizes, **times}
    return found


# ---- patterns, estimates, studies ----------------------------------------------------


def model_layout(name: str) -> tuple[Any, ...]:
    """Make the model, layout and routing of a pattern."""
    from moetraffic.patterns import Gating, Layout, preset

    model, layout, *routing = INPUTS["layouts"][name]
    gating = [Gating(**options) for options in routing]
    return preset(model).model, Layout(**layout), *gating


def dense(found: Mapping[str, Any]) -> dict[str, Any]:
    """Convert sparse matrices by kind of traffic."""
    return {kind: matrix.toarray().astype(np.int64) for kind, matrix in found.items()}


def patterns_room() -> Cases:
    """Yield calls, bytes and matrices of configurations and of own workloads."""
    from moetraffic import patterns

    def configured(name: str) -> Any:
        return pattern_figures(patterns.megatron_pattern(*model_layout(name)))

    def own(name: str) -> Any:
        workload = patterns.Workload.from_json(open_trace(name).meta.workload)
        return pattern_figures(patterns.workload_pattern(workload))

    def travelling(name: str, algorithm: str) -> Any:
        pattern, nodes = (
            patterns.megatron_pattern(*model_layout(name)),
            {"gpus_per_node": 8},
        )
        return dense(patterns.traffic_matrices(pattern, algorithm=algorithm, **nodes))

    for name in INPUTS["layouts"]:
        yield f"{name}/patterns", partial(configured, name)
    for name in (
        "ep2",
        "ep2-padded",
        "ep2-tp2",
        "ep2-pp2",
        "ep2-zero3",
        "own-settings",
    ):
        yield f"{name}/patterns", partial(own, name)
    name = "mixtral-ep8-tp2-pp2"
    for algorithm in (
        "ring",
        "direct",
        "double-tree",
        "hierarchical",
    ):
        yield f"{name}/patterns/{algorithm}", partial(travelling, name, algorithm)


def pattern_figures(pattern: Any) -> dict[str, Any]:
    """Return calls and bytes of an iteration, by kind of traffic, and their order."""
    from moetraffic.patterns import traffic_matrices

    def order(program: Any) -> Iterator[str]:
        for call, micro_batch in program:
            what = f"{call.operation} {call.traffic} {call.size} {call.layer}"
            yield f"{what} {call.direction} {call.phase} {micro_batch}"

    calls: dict[str, Any] = defaultdict(lambda: {"calls": 0, "input_bytes": 0})
    for call, groups, times in pattern.calls():
        sums = calls[f"{call.traffic}/{call.operation}/{call.phase or call.direction}"]
        sums["calls"] += times * len(groups)
        sums["input_bytes"] += times * len(groups) * call.size
    programs = {f"stage{n}": order(p) for n, p in enumerate(pattern.programs)}
    return {**calls, "matrix": dense(traffic_matrices(pattern)), "order": programs}


TERMS = """compute hidden overhead optimizer bubble iteration bubble_share comm_share
tokens_s flops_gpu communication wire"""
MEMORY = "weights gradients optimizer activations total"


def estimates_room() -> Cases:
    """Yield estimates of configurations, the fastest ones, and bandwidth tables."""
    from moetraffic import timemodel
    from moetraffic.analysis.times.calibration import calibrated
    from moetraffic.patterns import Layout, preset
    from moetraffic.patterns.bandwidth import big_red_200
    from moetraffic.patterns.layout import RECOMPUTE

    links = timemodel.NodeLinks(gpus=8, inside_bytes_s=300e9, nic_bytes_s=200e9)
    a100 = partial(timemodel.System.of_gpu, timemodel.A100, links)
    flat = {"utilization": 0.45, "bandwidth": 25e9, "latency_s": 5e-6}
    systems = {
        **{"a100": a100(), "a100-overlap": a100(overlap={"dp": 0.8})},
        "utilization": timemodel.System(peak_flops=312e12, **flat),
    }

    def terms(made: Any) -> Any:
        return {**fields(made, TERMS), "memory": fields(made.memory, MEMORY)}

    def estimated(name: str, system: Any) -> Any:
        config = Layout.of(*model_layout(name))
        return terms(timemodel.estimate(config, system))

    def fastest(model: str, **options: int) -> Any:
        found = timemodel.search(preset(model).model, a100(), **options)
        rows = found.rows(5)
        for row in rows:
            row["recompute"] = RECOMPUTE.index(row["recompute"])
        numbers = [{name: float(value) for name, value in row.items()} for row in rows]
        return {str(n): row for n, row in enumerate(numbers)}

    def effective(table: Any, key: Sequence[Any], ranks: int) -> Any:
        of = dict(zip(("platform", "protocol", "span"), key[1:], strict=True))
        found = table.effective(key[0], ranks, 2.0 ** np.arange(10, 31), **of)
        return fields(found, "time_s bytes_s")

    for name in INPUTS["layouts"]:
        for label, system in systems.items():
            yield f"{name}/estimates/{label}", partial(estimated, name, system)
    for model, gpus, k in (("gpt-1.3b", 16, 0), ("mixtral-8x7b", 64, 2)):
        options = {"gpus": gpus, "global_batch": 256, "k": k}
        yield f"{model}/estimates/fastest", partial(fastest, model, **options)
    trace = open_trace("own-settings")
    yield (
        "own-settings/estimates/calibrated",
        lambda: terms(calibrated(trace).predicted),
    )
    table = big_red_200()
    for measured, curves in sorted(table.curves.items()):
        for ranks in sorted({*(c.ranks for c in curves), 6}):
            key = f"big-red-200/estimates/{'-'.join(map(str, measured))}/{ranks}"
            yield key, partial(effective, table, measured, ranks)


def studies_room() -> Cases:
    """Yield computed values beside published ones, by table and row."""
    from moetraffic.studies import reproduce

    times = ("sc21_table1", "table5", "sc21_table2", "h100_dense", "h100_experts")
    stripes = ("stripes_4_2_4", "stripes_4_4_4", "stripes_2_8_4")
    # numbers of tables that are gone stay free
    names = {
        "apnet24": ("groups", *stripes, "estimates", "bubble"),
        "sigmetrics24": (
            *("communication", "throughput", "projection", ""),
            *("model_parallel", "copies", "scaling"),
        ),
        "iteration_times": ("errors", "", "not_fitted", "", *times),
        "sc21": ("sc21_table1", "sc21_table2", "sc21_ranking"),
    }

    def tables(name: str) -> Any:
        study = reproduce("iteration_times" if name == "sc21" else name)
        every = [table for table in study.tables if table != "summary"]
        return {"not_reproducible": len(study.data["not_reproducible"])} | {
            f"table{number}/row{n}": list(row.values())
            for number, table in enumerate(names.get(name, every))
            if table
            for n, row in enumerate(study.rows(table))
        }

    for name in INPUTS["studies"]:
        yield f"{name}/studies", partial(tables, name)


# ---- files of other tools ------------------------------------------------------------

FORMATS = "perfetto chakra nccl-tests htsim hpcc eplb csv npz parquet"


def files_room() -> Cases:
    """Yield exports and imports."""
    from moetraffic import export_trace, import_trace
    from moetraffic.interop.write import ExportOptions

    def exported(name: str, form: str) -> Any:
        trace = open_trace(name)
        every_ns = 1000 * trace.meta.virtual  # between calls that have no times
        options = ExportOptions(iterations=first(trace, 2), every_ns=every_ns)
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / f"run.{form}"
            files = export_trace(file_of(name), output, form, options=options).files
            return file_figures(files)

    for name in ("run-top2-unbalanced", "own-settings", "ep4-dropped", "golden"):
        for form in FORMATS.split():
            yield f"{name}/files/{form}", partial(exported, name, form)
    for path in sorted((FILES / "imports").iterdir()):
        read = partial(import_trace, path, keep=True)
        yield f"{path.stem}/files/imported", lambda read=read: trace_figures(read())


def file_figures(files: Sequence[Path]) -> dict[str, Any]:
    """Return the content of written files: tables by column, others by their bytes."""
    import pandas

    read = {".csv": pandas.read_csv, ".parquet": pandas.read_parquet, ".npz": np.load}
    if (form := files[0].suffix) in read:
        columns = dict(read[form](files[0]))
        return {"files": len(files)} | {n: np.asarray(v) for n, v in columns.items()}
    content = b"".join(path.read_bytes() for path in sorted(files))
    sizes = {"bytes": len(content), "lines": content.count(b"\n")}
    return {"files": len(files), **sizes, "sha256": digest(content)}


ROOMS: Mapping[str, Callable[[], Cases]] = {
    **{"trace": trace_room, "what-if": what_if_room, "analyze": analyze_room},
    **{"fabric": fabric_room, "policies": policies_room, "replay": replay_room},
    **{"patterns": patterns_room, "estimates": estimates_room, "studies": studies_room},
    "files": files_room,
}
