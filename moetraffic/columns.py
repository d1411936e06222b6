"""Columns of the tables of results: heading, format, unit and meaning of each name.

A name means the same in every table, terminal, page, JSON and frame.  The versioned
page ``docs/columns.md`` is made from this registry and held by a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .text import visible
from .units import bit_rate, byte_rate, byte_size, duration, three_digits

VERSION = 6
"""Version of the columns and of all JSON; it grows when a name changes its meaning."""


@dataclass(frozen=True)
class Column:
    """How the values of a name are shown, and what they are."""

    heading: str
    format: str  # of Python's format(), or a name of QUANTITIES; "": by type
    unit: str  # of the value in frames and JSON; "": none
    dtype: str  # int64, float64, str or bool
    meaning: str


QUANTITIES: dict[str, Callable[[float], str]] = {
    "bytes": byte_size,
    "digits": three_digits,
    "bytes/s": lambda value: f"{byte_size(value)}/s",
    "bit/s": bit_rate,  # from bytes per second
    "GB/s": byte_rate,  # from bytes per second
    "s": duration,
    "ns": lambda value: duration(value / 1e9),
    "percent": lambda value: f"{value:.1%}" if value < 0.1 else f"{value:.0%}",
    "layer": lambda value: "all" if value < 0 else f"{value:.0f}",
    "number": lambda value: "" if value < 0 else f"{value:.0f}",  # -1: none
}
"""Formats with a unit whose prefix depends on the value."""

COLUMNS: dict[str, Column] = {
    # ---- of which part of a run ------------------------------------------------------
    "file": Column("file", "", "", "str", "trace, where a table is of several"),
    "place": Column("layer", "", "", "str", "layer or other part of the run, as text"),
    "layer": Column("layer", "layer", "", "int64", "number of the MoE layer"),
    "group": Column("group", "number", "", "int64", "number of the process group"),
    "rank": Column("rank", "d", "", "int64", "rank of the run"),
    "iteration": Column("iteration", "d", "", "int64", "number of the iteration"),
    "iterations": Column("iterations", "d", "", "int64", "iterations used"),
    "subject": Column(
        "of",
        "",
        "",
        "str",
        "what a value is of: expert_load, its load_shares and total_load, demand (rank "
        "x expert, token copies), wire (rank x rank, bytes), received (bytes by rank)",
    ),
    # ---- evenness --------------------------------------------------------------------
    "measure": Column("", "", "", "str", "measured quantity, a name of this page"),
    "value": Column("value", "", "", "float64", "value of the measure"),
    "balanced": Column(
        "balanced", "", "", "float64", "value expected of a balanced router; NaN: none"
    ),
    "early": Column("early", "", "", "float64", "mean of the first third"),
    "middle": Column("middle", "", "", "float64", "mean of the second third"),
    "late": Column("late", "", "", "float64", "mean of the last third"),
    "worst": Column(
        "worst 10", "", "", "float64", "worst mean of ten consecutive iterations"
    ),
    "worst_at": Column(
        "from", "number", "", "int64", "first iteration of the worst ten"
    ),
    "entropy": Column(
        "entropy", ".3f", "", "float64", "Shannon entropy over its maximum, 0 to 1"
    ),
    "entropy_bits": Column(
        "entropy, bits", ".3f", "bits", "float64", "Shannon entropy of the shares"
    ),
    "max_mean": Column("max / mean", ".2f", "", "float64", "largest over mean value"),
    "cv": Column("CV", ".3f", "", "float64", "standard deviation over mean"),
    "gini": Column("Gini", ".3f", "", "float64", "Gini coefficient, 0 (even) to 1"),
    "zero": Column("zero", ".1%", "share", "float64", "share of the cells that are 0"),
    "busiest_expert": Column(
        "busiest expert",
        ".2f",
        "",
        "float64",
        "token copies of the busiest expert, over the mean",
    ),
    "busiest_receiver": Column(
        "busiest receiver",
        ".2f",
        "",
        "float64",
        "bytes that the busiest rank receives, over the mean",
    ),
    # ---- claims ----------------------------------------------------------------------
    "claim": Column("claim", "", "", "str", "claim about the run that was tested"),
    "outcome": Column(
        "outcome", "", "", "str", "stated, not shown, too short, or unknown"
    ),
    "figure": Column("figure", ".4g", "", "float64", "size of what is claimed"),
    "low": Column("low", ".4g", "", "float64", "lower end of the 95% interval"),
    "high": Column("high", ".4g", "", "float64", "upper end of the 95% interval"),
    "p": Column("p", ".2g", "", "float64", "p-value; a claim is stated up to 0.01"),
    "needs": Column(
        "needs", "d", "", "int64", "iterations that the test needs, if too short; or 0"
    ),
    "since": Column(
        "since",
        "number",
        "",
        "int64",
        "first iteration of what is stated: of steady; by which 90% of a change of the "
        "evenness was over; -1: none",
    ),
    # ---- forecasts -------------------------------------------------------------------
    "horizon": Column(
        "ahead", "d", "training steps", "int64", "from the newest iteration used"
    ),
    "method": Column(
        "method", "", "", "str", "persistence, mean, ema, seasonal; within: ridge"
    ),
    "setting": Column("setting", "", "", "str", "of the method, as tuned"),
    "chosen": Column(
        "chosen",
        "",
        "",
        "bool",
        "least squared error on the validation part; persistence, where such a method "
        "had a larger error than it on the test part",
    ),
    "origins": Column("forecasts", "d", "", "int64", "forecasts of the test part"),
    "mse": Column(
        "MSE", ".4g", "", "float64", "mean squared error, square of the subject's unit"
    ),
    "nmse": Column("NMSE", ".3f", "", "float64", "MSE over that of the past mean"),
    "mape": Column(
        "MAPE", ".1%", "share", "float64", "mean relative error of cells above 0"
    ),
    "within_20": Column(
        "within 20%",
        ".1%",
        "share",
        "float64",
        "share of the bytes or copies that are in cells forecast within 20%",
    ),
    "below_mean": Column(
        "MSE below mean",
        ".1%",
        "share",
        "float64",
        "1 - MSE / MSE of the mean of the past",
    ),
    "below_mean_low": Column("low", ".1%", "share", "float64", "95% interval"),
    "below_mean_high": Column("high", ".1%", "share", "float64", "95% interval"),
    "below_last": Column(
        "MSE below last", ".1%", "share", "float64", "1 - MSE / MSE of persistence"
    ),
    "below_last_low": Column("low", ".1%", "share", "float64", "95% interval"),
    "below_last_high": Column("high", ".1%", "share", "float64", "95% interval"),
    "oracle_nmse": Column(
        "oracle NMSE",
        ".3f",
        "",
        "float64",
        "NMSE of a forecast by the true probabilities: sampling noise; NaN: unknown",
    ),
    "first_layer": Column(
        "from layer", "d", "", "int64", "first layer, whose load corrects the forecast"
    ),
    "below_past": Column(
        "MSE below past",
        ".1%",
        "share",
        "float64",
        "1 - MSE / MSE of the best forecast from the iteration before",
    ),
    "below_past_low": Column("low", ".1%", "share", "float64", "95% interval"),
    "below_past_high": Column("high", ".1%", "share", "float64", "95% interval"),
    "past_within_20": Column(
        "past within 20%",
        ".1%",
        "share",
        "float64",
        "within_20 of the best forecast from the iteration before",
    ),
    "equal_share": Column(
        "equal", ".1%", "share", "float64", "share of the iterations with equal loads"
    ),
    "phase": Column(
        "phase", "", "", "str", "dispatch, combine, combine_grad, dispatch_grad"
    ),
    "offset_s": Column(
        "offset", "s", "s", "float64", "from the start of the step to the exchange"
    ),
    "lead_s": Column(
        "lead time", "s", "s", "float64", "from the first dispatch to the exchange"
    ),
    "reconfiguration_s": Column(
        "fits",
        "s",
        "s",
        "float64",
        "longest reconfiguration of 1 us, 10 us, 1 ms and 25 ms within the lead time",
    ),
    # ---- experts and tokens ----------------------------------------------------------
    "load_p50": Column(
        "load p50", ".2f", "", "float64", "load of experts over the mean, median"
    ),
    "load_p90": Column("p90", ".2f", "", "float64", "load over the mean, 90% are less"),
    "load_p99": Column("p99", ".2f", "", "float64", "load over the mean, 99% are less"),
    "starved": Column(
        "starved", "d", "", "int64", "experts with less than a tenth of the mean load"
    ),
    "starved_experts": Column("ids", "", "", "str", "numbers of the starved experts"),
    "starved_at_end": Column(
        "starved at the end", "d", "", "int64", "starved in the last ten iterations"
    ),
    "collapsed_at": Column(
        "collapsed at",
        "d",
        "",
        "int64",
        "iteration from which on half of the experts are starved; -1: none, or there "
        "are too few tokens to distinguish it from sampling noise",
    ),
    "dropped": Column(
        "dropped", ".1%", "share", "float64", "share of the token copies; NaN: unknown"
    ),
    "capacity_factor": Column(
        "capacity factor", ".3g", "", "float64", "that all drops obey; NaN: none"
    ),
    "capacity_rule": Column(
        "of",
        "",
        "",
        "str",
        "tokens that this factor applies to: by_rank, of_all (ranks), or empty",
    ),
    "dropless_factor_by_rank": Column(
        "dropless factor per rank",
        ".2f",
        "",
        "float64",
        "capacity factor per rank that holds all copies in 99% of iterations",
    ),
    "dropless_factor_of_all": Column(
        "over all ranks",
        ".2f",
        "",
        "float64",
        "capacity factor over all ranks that holds all copies in 99% of iterations",
    ),
    "hot": Column("hot", "d", "", "int64", "hot experts: an eighth, of most load"),
    "hot_retained": Column(
        "hot retained",
        ".1%",
        "share",
        "float64",
        "hot experts that are hot again, mean over lags up to half of the run",
    ),
    "hot_retained_next": Column(
        "in the next", ".1%", "share", "float64", "hot again one iteration later"
    ),
    "hot_retained_by_chance": Column(
        "by chance", ".1%", "share", "float64", "of hot experts drawn at random"
    ),
    "ep": Column("EP", "d", "", "int64", "expert-parallel ranks, experts in order"),
    "max_mean_p99": Column(
        "max / mean p99", ".2f", "", "float64", "largest over mean, 99% are less"
    ),
    "placement": Column(
        "placement", "", "", "str", "of experts: captured, or contiguous on the hosts"
    ),
    "hosts_per_token": Column(
        "hosts per token", ".3f", "", "float64", "hosts that a token is sent to, mean"
    ),
    "hosts_per_token_low": Column("low", ".3f", "", "float64", "95% interval"),
    "hosts_per_token_high": Column("high", ".3f", "", "float64", "95% interval"),
    "sampled_tokens": Column(
        "sampled tokens", "d", "", "int64", "tokens whose experts are recorded"
    ),
    "expert": Column("expert", "d", "", "int64", "number of the expert"),
    "other_expert": Column("and", "d", "", "int64", "number of the other expert"),
    "common_tokens": Column(
        "tokens with both", "d", "", "int64", "sampled tokens that have both experts"
    ),
    "expected_tokens": Column(
        "expected",
        ".1f",
        "",
        "float64",
        "tokens with both of independent choices with the same loads",
    ),
    "lift": Column("lift", ".2f", "", "float64", "tokens with both over expected"),
    "lift_low": Column(
        "low", ".2f", "", "float64", "95% interval, of all pairs at once"
    ),
    "lift_high": Column(
        "high", ".2f", "", "float64", "95% interval, of all pairs at once"
    ),
    # ---- rhythm ----------------------------------------------------------------------
    "source": Column(
        "traffic", "", "", "str", "traffic source: a phase, layer, rank or link"
    ),
    "by": Column("by", "", "", "str", "kind of the source or of the rows"),
    "duty": Column("duty cycle", ".1%", "share", "float64", "share of time in bursts"),
    "bursts": Column(
        "bursts", "d", "", "int64", "all-to-alls, overlapping ones as one"
    ),
    "burst_ns": Column("burst", "ns", "ns", "float64", "mean length of a burst"),
    "burst_cv": Column("CV of bursts", ".2f", "", "float64", "CV of their lengths"),
    "burst_p50_ns": Column("burst p50", "ns", "ns", "float64", "median burst"),
    "burst_p99_ns": Column("burst p99", "ns", "ns", "float64", "99% are shorter"),
    "gap_ns": Column("gap", "ns", "ns", "float64", "mean time between two bursts"),
    "gap_cv": Column("CV of gaps", ".2f", "", "float64", "CV of these times"),
    "period_ns": Column(
        "period",
        "ns",
        "ns",
        "float64",
        "median step, of at least 16; without steps, that of bursts that keep a phase",
    ),
    "jitter": Column("jitter", ".1%", "share", "float64", "CV of the step times"),
    "acf": Column(
        "autocorrelation",
        ".2f",
        "",
        "float64",
        "of the on-off series at the period, else at the mean cycle",
    ),
    "peak_to_mean": Column(
        "peak/mean", ".1f", "", "float64", "largest over mean bin of the on-off series"
    ),
    "cycles": Column("cycles", "d", "", "int64", "steps without pauses"),
    "cycle_ns": Column("cycle", "ns", "ns", "float64", "mean length of these"),
    "observed_ns": Column("observed", "ns", "ns", "float64", "time that was observed"),
    "events": Column("calls", "d", "", "int64", "all-to-alls with known times"),
    "clock_error_ns": Column(
        "clock error", "ns", "ns", "int64", "between ranks; 0: times of one clock"
    ),
    "steps": Column("steps", "d", "", "int64", "training steps of known length"),
    "step_ns": Column("step", "ns", "ns", "float64", "mean step time"),
    "step_cv": Column("CV of steps", ".1%", "share", "float64", "CV of step times"),
    "step_p50_ns": Column("step p50", "ns", "ns", "float64", "median step time"),
    "step_p90_ns": Column("step p90", "ns", "ns", "float64", "90% are shorter"),
    "step_p99_ns": Column("step p99", "ns", "ns", "float64", "99% are shorter"),
    "step_max_ns": Column("longest step", "ns", "ns", "float64", "longest step time"),
    "frequency_hz": Column("frequency", ".4g", "Hz", "float64", "of the on-off series"),
    "power_share": Column(
        "power", ".2%", "share", "float64", "share of the power without the mean"
    ),
    # ---- times -----------------------------------------------------------------------
    "step_time": Column(
        "step time", "s", "s", "float64", "mean over ranks; the first 3 are left out"
    ),
    "compute": Column(
        "compute", ".1%", "share", "float64", "share of a step that only computes"
    ),
    "overlapped": Column(
        "overlapped", ".1%", "share", "float64", "of a step: computes during a transfer"
    ),
    "transfer": Column(
        "transfer", ".1%", "share", "float64", "of a step: only a transfer takes place"
    ),
    "waiting": Column(
        "waiting", ".1%", "share", "float64", "of a step: waits for the latest rank"
    ),
    "calls": Column("calls", "d", "", "int64", "calls with known times"),
    "transfer_p99": Column(
        "transfer p99", "s", "s", "float64", "99% of the transfers are shorter"
    ),
    "waiting_in_calls": Column(
        "waiting, of calls",
        ".0%",
        "share",
        "float64",
        "share of the ranks' time in calls before the latest rank's call",
    ),
    "label": Column("", "", "", "str", "operation, phase or layer of the calls"),
    "first_p50": Column("p50, first", "s", "s", "float64", "median time, first run"),
    "second_p50": Column("p50, second", "s", "s", "float64", "of the second run"),
    "first_p99": Column("p99, first", "s", "s", "float64", "99% are shorter"),
    "second_p99": Column("p99, second", "s", "s", "float64", "of the second run"),
    "first_total": Column("total, first", "s", "s", "float64", "sum over the calls"),
    "second_total": Column("total, second", "s", "s", "float64", "of the second run"),
    "ratio": Column(
        "ratio", ".3g", "", "float64", "total of the second over the first"
    ),
    "ratio_low": Column("low", ".3g", "", "float64", "95% interval of the ratio"),
    "ratio_high": Column("high", ".3g", "", "float64", "95% interval"),
    "over": Column(
        "interval over", "", "", "str", "iterations or runs, of which the interval is"
    ),
    "first_runs": Column("runs, first", "d", "", "int64", "timed runs of a replay"),
    "second_runs": Column("runs, second", "d", "", "int64", "of the second"),
    "tested_low": Column("99% low", ".3g", "", "float64", "99% interval of the ratio"),
    "tested_high": Column("99% high", ".3g", "", "float64", "99% interval"),
    "busy": Column(
        "busy hosts", "", "", "bool", "other processes used the hosts: interval wider"
    ),
    "first_waiting": Column(
        "waiting, first", ".0%", "share", "float64", "share of the time in calls"
    ),
    "second_waiting": Column(
        "waiting, second", ".0%", "share", "float64", "of the second run"
    ),
    "first_busbw": Column(
        "busbw, first",
        "GB/s",
        "bytes/s",
        "float64",
        "bytes of the busiest link over the transfer time",
    ),
    "first_busbw_low": Column("low", "GB/s", "bytes/s", "float64", "95% over runs"),
    "first_busbw_high": Column("high", "GB/s", "bytes/s", "float64", "95% over runs"),
    "second_busbw": Column(
        "busbw, second", "GB/s", "bytes/s", "float64", "of the second run"
    ),
    "second_busbw_low": Column("low", "GB/s", "bytes/s", "float64", "95% over runs"),
    "second_busbw_high": Column("high", "GB/s", "bytes/s", "float64", "95% over runs"),
    # ---- complexity and networks -----------------------------------------------------
    "temporal": Column(
        "T", ".3f", "", "float64", "temporal complexity; 1: no order in time"
    ),
    "temporal_low": Column("low", ".3f", "", "float64", "95% interval"),
    "temporal_high": Column("high", ".3f", "", "float64", "95% interval"),
    "temporal_corrected": Column(
        "T corrected", ".3f", "", "float64", "T without the bias of the compressor"
    ),
    "non_temporal": Column(
        "NT", ".3f", "", "float64", "non-temporal complexity; 1: all pairs alike"
    ),
    "non_temporal_low": Column("low", ".3f", "", "float64", "95% interval"),
    "non_temporal_high": Column("high", ".3f", "", "float64", "95% interval"),
    "non_temporal_limit": Column(
        "NT limit", ".3f", "", "float64", "limit of NT for long sequences"
    ),
    "trace_complexity": Column("T x NT", ".3f", "", "float64", "trace complexity"),
    "trace_complexity_low": Column("low", ".3f", "", "float64", "95% interval"),
    "trace_complexity_high": Column("high", ".3f", "", "float64", "95% interval"),
    "markov_bits": Column(
        "entropy rate, bits", ".3f", "bits", "float64", "of a pair given the last one"
    ),
    "bits": Column("bits", ".3f", "bits", "float64", "compressed size of a packet"),
    "shuffled_bits": Column(
        "shuffled", ".3f", "bits", "float64", "same packets in random order"
    ),
    "uniform_bits": Column(
        "uniform", ".3f", "bits", "float64", "as many packets of pairs drawn evenly"
    ),
    "packets": Column("packets", "d", "", "int64", "packets that were compressed"),
    "pairs": Column("pairs", "d", "", "int64", "pairs that could send"),
    "packet_size": Column(
        "packet size", "d", "", "int64", "token copies per packet (bytes, if unknown)"
    ),
    "whole": Column("whole", "", "", "bool", "whether these are all packets"),
    "hosts": Column("hosts", "d", "", "int64", "number of hosts; 0: unknown"),
    "inter_host": Column(
        "inter-host", ".1%", "share", "float64", "bytes between ranks that leave a host"
    ),
    "inter_host_uniform": Column(
        "uniform", ".1%", "share", "float64", "inter-host share of uniform traffic"
    ),
    "line_efficiency": Column(
        "line efficiency",
        ".3f",
        "",
        "float64",
        "mean over largest sum of a row or column; 1: all ranks alike",
    ),
    "bottleneck_bytes": Column(
        "bottleneck", "bytes", "bytes", "float64", "most bytes of a rank, mean"
    ),
    "bottleneck_p50": Column("p50", "bytes", "bytes", "float64", "of the bottleneck"),
    "bottleneck_p90": Column("p90", "bytes", "bytes", "float64", "of the bottleneck"),
    "bottleneck_p99": Column("p99", "bytes", "bytes", "float64", "of the bottleneck"),
    "nic_flows": Column(
        "flows of a NIC", ".1f", "", "float64", "ranks that a rank sends to, mean"
    ),
    "largest_flows_byte_share": Column(
        "bytes of largest flows", ".1%", "share", "float64", "of the largest tenth"
    ),
    "largest_flows_number_share": Column(
        "share of flows", ".1%", "share", "float64", "the largest flows, at least one"
    ),
    # ---- networks --------------------------------------------------------------------
    "quantity": Column("", "", "", "str", "what a time or amount is of"),
    "mean_s": Column("mean", "s", "s", "float64", "mean over iterations"),
    "max_s": Column("max", "s", "s", "float64", "largest of all iterations"),
    "where": Column("where", "", "", "str", "links or cuts, as text"),
    "bound": Column("lower bound", "", "", "str", "port, rank or family of cuts"),
    "bound_s": Column(
        "bound",
        "s",
        "s",
        "float64",
        "largest lower bound, mean of iterations; of calls of a kind: the sum",
    ),
    "holds_for": Column("holds for", "", "", "str", "routings that it bounds"),
    "link": Column("link", "", "", "str", "directed link, or several as text"),
    "links": Column("links", "", "", "str", "set of equal-cost links of one switch"),
    "capacity_bytes_s": Column(
        "capacity", "bit/s", "bytes/s", "float64", "rate of the link, one way"
    ),
    "mean_bytes": Column("mean bytes", "bytes", "bytes", "float64", "an iteration"),
    "slowest_in": Column(
        "slowest in", "d", "", "int64", "iterations in which it is the slowest link"
    ),
    "time_s": Column("time", "s", "s", "float64", "bytes over capacity"),
    "flows": Column("flows", ".3g", "", "float64", "hashed over the set, mean"),
    "max_flows": Column("most on one", ".3g", "", "float64", "flows of a link, mean"),
    "expected_max_flows": Column(
        "expected", ".3g", "", "float64", "most flows on one link by random hashing"
    ),
    "no_collision": Column(
        "P(no collision)", ".2g", "", "float64", "probability by random hashing"
    ),
    "over_even": Column(
        "bytes over even", ".3f", "", "float64", "fullest link over an even split"
    ),
    "has_slowest": Column(
        "slowest link", "", "", "bool", "whether the slowest link is in the set"
    ),
    "failed": Column("failed", "", "", "str", "cable whose both directions fail"),
    "over_intact": Column(
        "over intact", ".3g", "", "float64", "time over that of the intact network"
    ),
    "oversubscription": Column(
        "ratio", "g", "", "float64", "capacity of a leaf's NICs over its uplinks"
    ),
    "over_first": Column("over first", ".3g", "", "float64", "over the first ratio"),
    "switches": Column("switches", "d", "", "int64", "leaves and spines"),
    "exchange": Column("exchange", "", "", "str", "phase, label or operation"),
    "circuits": Column("circuits", ".4g", "", "float64", "configurations, mean"),
    "terms_50": Column("for 50%", ".4g", "", "float64", "for half of the bytes"),
    "terms_90": Column("for 90%", ".4g", "", "float64", "for 90% of the bytes"),
    "terms_99": Column("for 99%", ".4g", "", "float64", "for 99% of the bytes"),
    "sending_s": Column("transfer", "s", "s", "float64", "circuits send, mean"),
    "completion_s": Column(
        "completion", "s", "s", "float64", "transfer and reconfigurations, mean"
    ),
    "sending_share": Column(
        "duty cycle", ".1%", "share", "float64", "transfer over completion"
    ),
    "demand_bytes": Column("bytes", "bytes", "bytes", "float64", "between ranks, mean"),
    "matrix": Column("matrix", "", "", "str", "what is scheduled"),
    "shift_s": Column("time shift", "s", "s", "float64", "of the job, later"),
    "period_s": Column("period", "s", "s", "float64", "iteration time of the job"),
    "on_circle": Column(
        "on circle", "d", "", "int64", "iterations in the common period of the jobs"
    ),
    "mean_load": Column("mean load", ".1%", "share", "float64", "of the capacity"),
    "peak_load": Column("peak load", ".1%", "share", "float64", "of the capacity"),
    # ---- policies --------------------------------------------------------------------
    "policy": Column("policy", "", "", "str", "name of the policy"),
    "forecaster": Column("forecast", "", "", "str", "that plans are made from"),
    "family": Column("family", "", "", "str", "circuits, transmission or placement"),
    "network": Column("network", "", "", "str", "what serves the plans"),
    "age": Column(
        "age",
        "d",
        "iterations",
        "int64",
        "from the newest known one to the planned one",
    ),
    "delay_s": Column("delay", "s", "s", "float64", "of a reconfiguration"),
    "circuits_of_port": Column("circuits a port", "d", "", "int64", "at the same time"),
    "exchanges": Column("exchanges", "d", "", "int64", "that were served"),
    "completion_p50_s": Column("p50", "s", "s", "float64", "median completion time"),
    "completion_p99_s": Column("p99", "s", "s", "float64", "of completion times"),
    "completion_mean_s": Column("mean", "s", "s", "float64", "completion time"),
    "over_bound": Column(
        "over bound", ".3g", "", "float64", "sum of times over sum of lower bounds"
    ),
    "over_bound_interval": Column("CI of over bound", ".3g", "", "float64", "95%"),
    "regret": Column(
        "cost of forecast",
        ".1%",
        "share",
        "float64",
        "time over that of the same policy with the true traffic, minus 1",
    ),
    "regret_interval": Column("CI of cost", ".1%", "share", "float64", "95%"),
    "over_fastest": Column(
        "over fastest", ".1%", "share", "float64", "more time than the fastest policy"
    ),
    "over_fastest_interval": Column(
        "CI of over fastest", ".1%", "share", "float64", "95%, paired"
    ),
    "served_share": Column(
        "served share", ".1%", "share", "float64", "bytes that the plan itself carries"
    ),
    "reconfigurations": Column(
        "reconfigurations", ".3g", "", "float64", "mean of an exchange"
    ),
    "moved_experts": Column("moved experts", ".3g", "", "float64", "mean of a plan"),
    "moved_bytes": Column("moved", "bytes", "bytes", "float64", "experts, mean"),
    "load_imbalance": Column(
        "max/mean load", ".3f", "", "float64", "token copies of ranks, mean"
    ),
    "planning_p50_s": Column("planning", "s", "s", "float64", "CPU time of a plan"),
    "planning_max_s": Column("planning max", "s", "s", "float64", "CPU time of a plan"),
    "pays_below_s": Column(
        "circuits pay below",
        "s",
        "s",
        "float64",
        "delay from which packets alone are never slower",
    ),
    "traces": Column("traces", "d", "", "int64", "that means are over"),
    "rates": Column("rates", "", "", "str", "rates and delay of a network"),
    "reference": Column("lower bound", "", "", "str", "what the bound counts"),
    "transfer_s": Column(
        "transfer", "s", "s", "float64", "of the mean exchange's busiest port"
    ),
    # ---- comparison ------------------------------------------------------------------
    "first": Column("first", "", "", "float64", "mean, or setting, of the first run"),
    "second": Column("second", "", "", "float64", "of the second run"),
    "difference": Column("difference", "", "", "float64", "second minus first"),
    "difference_low": Column("low", "", "", "float64", "95% interval of a difference"),
    "difference_high": Column("high", "", "", "float64", "95% interval"),
    "noise": Column(
        "noise",
        "",
        "",
        "float64",
        "95% quantile of the difference, or distance, of two halves of one run",
    ),
    "interval": Column(
        "difference, 95% CI", "", "", "float64", "95% interval of the difference"
    ),
    "distance": Column(
        "distance",
        ".3f",
        "",
        "float64",
        "share: total variation, 0 to 1; amount, duration: relative difference; "
        "measures: Wasserstein-1",
    ),
    "observations": Column(
        "observations", "d", "", "int64", "iterations, or calls, of the shorter run"
    ),
    "share": Column("shares", ".3f", "share", "float64", "mean shares of a load"),
    "amount": Column(
        "amount", ".4g", "", "float64", "token copies or bytes of an iteration"
    ),
    "duration": Column("duration", "s", "s", "float64", "transfer time, median"),
    "transfer_p50": Column(
        "transfer p50", "s", "s", "float64", "median time from the last rank's call"
    ),
    "transfer_total": Column(
        "transfer, total", "s", "s", "float64", "time of all transfers of the calls"
    ),
    "wall_total": Column("wall, total", "s", "s", "float64", "wall time of all calls"),
    "wall_p50": Column("wall p50", "s", "s", "float64", "median wall time of calls"),
    "busbw": Column(
        "busbw", "GB/s", "bytes/s", "float64", "bytes of the busiest link over time"
    ),
    "ratio_interval": Column("95% CI", ".3g", "", "float64", "interval of the ratio"),
    # ---- comparison with real runs ---------------------------------------------------
    "synthetic": Column("synthetic", "", "", "float64", "of the synthetic run"),
    "real": Column(
        "real runs", "", "", "float64", "smallest and largest; of one run its value"
    ),
    "real_interval": Column(
        "95% interval",
        "",
        "",
        "float64",
        "for one more real run: Student's, Bonferroni over statistics",
    ),
    "finds": Column(
        "finds",
        "percent",
        "share",
        "float64",
        "smallest change that is found: half of the interval's width, relative; of "
        "shares and correlations absolute",
    ),
    "outside": Column(
        "outside", "", "", "bool", "whether it lies outside the interval"
    ),
    "growth": Column(
        "growth",
        ".3g",
        "",
        "float64",
        "busiest expert of the last fifth of the run, over that of the first",
    ),
    "change_over_noise": Column(
        "change / noise",
        ".3g",
        "",
        "float64",
        "total variation of the load from iteration to iteration, over that of draws",
    ),
    "change_5": Column(
        "change, 5 / 1", ".3g", "", "float64", "over 5 iterations and over one"
    ),
    "change_20": Column(
        "change, 20 / 1", ".3g", "", "float64", "over 20 iterations and over one"
    ),
    "drift": Column(
        "drift / noise",
        ".3g",
        "",
        "float64",
        "total variation of the loads of the first and last fifth, over that of draws",
    ),
    "hot_kept": Column(
        "hot experts kept",
        ".3f",
        "share",
        "float64",
        "share of the busiest quarter that is in it 10 iterations later",
    ),
    "rank_correlation": Column(
        "rank correlation",
        ".3f",
        "",
        "float64",
        "of two ranks' token copies, over experts, mean of all pairs",
    ),
    "row_dispersion": Column(
        "rank dispersion",
        ".3g",
        "",
        "float64",
        "chi-squared of the ranks' token copies over its degrees of freedom; 1: draws "
        "from the same load",
    ),
    "row_directions": Column(
        "rank directions",
        ".3g",
        "",
        "float64",
        "in which the shares of ranks differ: participation ratio of singular values",
    ),
    "row_persistence": Column(
        "rank persistence",
        ".3f",
        "",
        "float64",
        "correlation of the ranks' differences with the iteration before",
    ),
    "layer_coupling": Column(
        "layer coupling",
        ".3f",
        "",
        "float64",
        "correlation, over pairs of ranks, of their similarity in two layers",
    ),
    # ---- replay ----------------------------------------------------------------------
    "p50": Column("p50", "s", "s", "float64", "median transfer, from the last call"),
    "p99": Column("p99", "s", "s", "float64", "99% of the transfers are shorter"),
    "busbw_gbs": Column(
        "GB/s",
        "digits",
        "GB/s",
        "float64",
        "busbw: bytes of the busiest link over time",
    ),
    "busbw_interval": Column("95% CI", "digits", "GB/s", "float64", "of the busbw"),
    "busbw_gbit_s": Column("Gbit/s", "digits", "Gbit/s", "float64", "the same busbw"),
    "busbw_low": Column("low", "GB/s", "bytes/s", "float64", "95% interval of a busbw"),
    "busbw_high": Column("high", "GB/s", "bytes/s", "float64", "95% interval"),
    "waits": Column(
        "waiting", ".0%", "share", "float64", "of the time in calls, for late ranks"
    ),
    "sent": Column("sent", "bytes", "bytes", "int64", "bytes sent to other ranks"),
    "transfer_p90": Column(
        "transfer p90", "s", "s", "float64", "90% of the transfers are shorter"
    ),
    "transfer_max": Column("transfer max", "s", "s", "float64", "longest transfer"),
    "call_p50": Column(
        "call p50", "s", "s", "float64", "from the call to the end, slowest member"
    ),
    "call_p90": Column("call p90", "s", "s", "float64", "90% of the calls are shorter"),
    "call_p99": Column("call p99", "s", "s", "float64", "99% of the calls are shorter"),
    "call_max": Column("call max", "s", "s", "float64", "longest call"),
    "call_total": Column("call, total", "s", "s", "float64", "time of all calls"),
    "last_rank": Column("last rank", "number", "", "int64", "most often last to call"),
    "last_share": Column("last in", ".0%", "share", "float64", "of these calls"),
    "undetermined": Column(
        "below clock error", ".0%", "share", "float64", "of the transfers"
    ),
    "baseline": Column(
        "over",
        "",
        "",
        "str",
        "what times are divided by: captured (transfers), captured calls, bound (lower "
        "bound of a network), or ports (measured)",
    ),
    "host": Column("host", "", "", "str", "name of the rank's host"),
    "cores": Column("cores", "d", "", "int64", "processors of the host"),
    "others": Column(
        "used by others", ".2g", "cores", "float64", "processors, during the replay"
    ),
    "send": Column(
        "sends at", "GB/s", "bytes/s", "float64", "payload rate of its port"
    ),
    "send_low": Column("low", "GB/s", "bytes/s", "float64", "95% interval"),
    "send_high": Column("high", "GB/s", "bytes/s", "float64", "95% interval"),
    "receive": Column(
        "receives at", "GB/s", "bytes/s", "float64", "the same, receiving"
    ),
    "receive_low": Column("low", "GB/s", "bytes/s", "float64", "95% interval"),
    "receive_high": Column("high", "GB/s", "bytes/s", "float64", "95% interval"),
    "slow": Column(
        "slow", "", "", "str", "direction below 0.8 of the other ranks' median rate"
    ),
    "error_p50": Column(
        "issue error p50", "s", "s", "float64", "issue time off the due time, absolute"
    ),
    "error_p90": Column("p90", "s", "s", "float64", "90% of the errors are smaller"),
    "error_p99": Column("p99", "s", "s", "float64", "99% of the errors are smaller"),
    "error_max": Column("max", "s", "s", "float64", "largest error"),
    "error_mean": Column("mean", "s", "s", "float64", "signed; above 0: late"),
    "late_calls": Column(
        "late", "d", "", "int64", "calls more than 1 ms after they were due"
    ),
    "background": Column(
        "background",
        "",
        "",
        "str",
        "all-to-alls with background traffic, or with its smallest sizes, over those "
        "alone; bytes: with it over with its smallest sizes",
    ),
    "stream": Column("stream", "", "", "str", "operations that follow each other"),
    "largest_bytes": Column(
        "largest",
        "bytes",
        "bytes",
        "int64",
        "most that a rank sends or receives at once",
    ),
    "buffer_bytes": Column("buffers", "bytes", "bytes", "int64", "to send and receive"),
    # ---- benchmark of collectives ----------------------------------------------------
    "collective": Column("collective", "", "", "str", "as nccl-tests names it"),
    "size_bytes": Column("size, B", "d", "bytes", "int64", "as nccl-tests counts it"),
    "time_us": Column("time, us", ".2f", "us", "float64", "mean, on the slowest rank"),
    "algbw_gbs": Column("algbw, GB/s", ".3f", "GB/s", "float64", "size over time"),
    "platform": Column("platform", "", "", "str", "name of the measured system"),
    "protocol": Column("protocol", "", "", "str", "name of its network protocol"),
    "ranks": Column("ranks", "d", "", "int64", "number of ranks, of the collective"),
    "span": Column("hosts", "d", "", "int64", "hosts that the ranks are on"),
    "wire_bytes": Column(
        "wire",
        "bytes",
        "bytes",
        "int64",
        "bytes that the busiest link carries each way",
    ),
    "count": Column("count", "d", "", "int64", "elements of the size"),
    "redop": Column("redop", "", "", "str", "sum, or none"),
    "root": Column("root", "number", "", "int64", "root of the collective; -1: none"),
    "wrong": Column(
        "wrong", "number", "", "int64", "elements, of all ranks; -1: not checked"
    ),
    "from_bytes": Column("from", "bytes", "bytes", "int64", "smallest size"),
    "to_bytes": Column("to", "bytes", "bytes", "int64", "largest size"),
    "busbw_at": Column("at", "bytes", "bytes", "int64", "size of the largest busbw"),
    "alpha_us": Column(
        "alpha, us", "digits", "us", "float64", "latency of a step, by Hockney's model"
    ),
    "beta_gbs": Column(
        "beta, GB/s", "digits", "GB/s", "float64", "busbw that large sizes approach"
    ),
    "fit_error": Column(
        "error", ".0%", "share", "float64", "median, of the fit at sizes left out of it"
    ),
    # ---- contents of a trace ---------------------------------------------------------
    "call": Column("call", "", "", "str", "phase of a layer, or name of another call"),
    "calls_per_iteration": Column(
        "calls", ".4g", "", "float64", "calls in a training iteration, mean"
    ),
    "bytes_per_iteration": Column(
        "bytes",
        "bytes",
        "bytes",
        "float64",
        "bytes that all ranks give to the calls of an iteration, mean",
    ),
    "bytes_between_ranks_per_iteration": Column(
        "between ranks",
        "bytes",
        "bytes",
        "float64",
        "bytes sent to other ranks in an iteration, all-reduces as rings, mean",
    ),
    "bytes": Column(
        "bytes", "bytes", "bytes", "int64", "bytes that all ranks give to the calls"
    ),
    "bytes_between_ranks": Column(
        "between ranks", "bytes", "bytes", "int64", "bytes sent to other ranks"
    ),
    "of": Column(
        "of", "", "", "str", "what of the calls was determined, such as layer"
    ),
    "named_by": Column(
        "layer, phase",
        "",
        "",
        "str",
        "how layer and phase were determined: annotated, linked, inferred or unknown",
    ),
    "module": Column("module", "", "", "str", "name of the layer's module"),
    "stage": Column("stage", "d", "", "int64", "pipeline stage"),
    "experts": Column("experts", "d", "", "int64", "experts of the layer"),
    "members": Column("ranks", "", "", "str", "ranks of a group, or groups of a layer"),
    "annotated": Column("annotated", "d", "", "int64", "stated by the program"),
    "linked": Column("linked", "d", "", "int64", "by a hook of autograd or a module"),
    "inferred": Column("inferred", "d", "", "int64", "from order and bytes of calls"),
    "unknown": Column("unknown", "d", "", "int64", "not determined"),
    "operation": Column("operation", "", "", "str", "all_to_all, all_reduce ..."),
    "direction": Column("direction", "", "", "str", "forward, backward or recompute"),
    "kind": Column("kind", "", "", "str", "kind of process group: ep, dp, tp ..."),
    "groups": Column("groups", "d", "", "int64", "number of process groups"),
    "group_ranks": Column("ranks of each", "d", "", "int64", "ranks of a group"),
    "micro_batches": Column("micro-batches", "d", "", "int64", "calls in an iteration"),
    "row_bytes": Column("row bytes", "d", "bytes", "int64", "bytes of a token copy"),
    "dtype": Column("dtype", "", "", "str", "element type on the wire"),
    "bytes_known": Column("bytes known", "", "", "bool", "whether bytes are recorded"),
    "token_sample": Column(
        "token sample", "d", "", "int64", "tokens of a rank whose experts are recorded"
    ),
    "field": Column("field", "", "", "str", "field of a trace's metadata"),
    "recorded": Column("recorded", "", "", "str", "what the trace records of it"),
    # ---- patterns, estimates, studies ------------------------------------------------
    "traffic": Column(
        "traffic",
        "",
        "",
        "str",
        "kind of traffic: TP, PP, DP, EP, CP, EmbTableSync or control",
    ),
    "bytes_per_rank": Column(
        "bytes a rank",
        "bytes",
        "bytes",
        "float64",
        "sent by a rank that sends most of its kind",
    ),
    "time": Column("time", "s", "s", "float64", "time in an iteration, or of a call"),
    "byte_share": Column(
        "share", ".1%", "share", "float64", "of all bytes between ranks"
    ),
    "pass": Column(
        "pass", "", "", "str", "forward, backward, recompute or after backward"
    ),
    "stages": Column("stages", "", "", "str", "pipeline stages that make the calls"),
    "payload": Column(
        "payload", "bytes", "bytes", "int64", "input bytes of a group member"
    ),
    "payload_per_rank": Column(
        "payload a rank",
        "bytes",
        "bytes",
        "int64",
        "of all these calls of an iteration",
    ),
    "exact": Column(
        "exact", "", "", "bool", "whether the size follows from the configuration alone"
    ),
    "mean_rank_bytes": Column(
        "mean rank",
        "bytes",
        "bytes",
        "float64",
        "sent by the mean rank of the busiest stage",
    ),
    "busiest_rank_bytes": Column(
        "busiest rank",
        "bytes",
        "bytes",
        "int64",
        "sent or received by the busiest rank",
    ),
    "largest_pair_bytes": Column(
        "largest pair", "bytes", "bytes", "int64", "sent by one rank to another"
    ),
    "from_rank": Column("from", "d", "", "int64", "rank that sends"),
    "to_rank": Column("to", "d", "", "int64", "rank that receives"),
    "term": Column("term", "", "", "str", "term of the iteration time"),
    "time_share": Column("share", ".1%", "share", "float64", "of the iteration time"),
    "rate": Column(
        "rate", "GB/s", "bytes/s", "float64", "bytes sent or waited for over their time"
    ),
    "hidden_time": Column(
        "hidden", "s", "s", "float64", "part of the time behind compute"
    ),
    "measured": Column("measured", "s", "s", "float64", "of the captured run, median"),
    "of_captured": Column(
        "of this run", "s", "s", "float64", "by the model, of the captured run itself"
    ),
    "memory_of": Column(
        "memory of", "", "", "str", "part of the memory that a GPU needs"
    ),
    "hidden_behind": Column(
        "behind", "", "", "str", "compute behind which traffic is hidden"
    ),
    "change": Column("change", "+.1%", "share", "float64", "of the iteration time"),
    "iteration_time": Column("T_iter", "s", "s", "float64", "time of an iteration"),
    "tokens_per_s": Column("tokens/s", ",.0f", "1/s", "float64", "of all ranks"),
    "comm_share": Column(
        "comm.", ".1%", "share", "float64", "exposed communication over T_iter"
    ),
    "bubble_share": Column(
        "bubble", ".1%", "share", "float64", "pipeline bubble over T_iter"
    ),
    "memory_needed": Column("memory", "bytes", "bytes", "float64", "that a GPU needs"),
    "zero_stage": Column("ZeRO", "d", "", "int64", "ZeRO stage, 0 to 3"),
    "fits": Column("fits", "", "", "bool", "whether it fits into the memory of a GPU"),
    "speedup": Column(
        "speedup", ".3g", "", "float64", "over the first row, or the captured run"
    ),
    "efficiency": Column(
        "efficiency",
        ".1%",
        "share",
        "float64",
        "speedup over the growth of the number of GPUs",
    ),
    "gpus": Column("GPUs", "d", "", "int64", "number of GPUs, or ranks"),
    "network_efficiency": Column(
        "network",
        ".3g",
        "",
        "float64",
        "efficiency of the network over the captured one",
    ),
    "throughput": Column(
        "throughput", ".3g", "", "float64", "over that of the captured run"
    ),
    "model": Column("model", "", "", "str", "name of the model"),
    "parameters": Column("parameters", "d", "", "int64", "number of parameters"),
    "active_parameters": Column(
        "active", "d", "", "int64", "parameters that a token passes through"
    ),
    "parameters_of": Column("parameters of", "", "", "str", "part of the model"),
    "fact": Column("value", "", "", "str", "value of a field, as text"),
    "origin": Column("source", "", "", "str", "publication that a model is from"),
    "published": Column("published", ".4g", "", "float64", "value of the publication"),
    "ours": Column("computed", ".4g", "", "float64", "recomputed value"),
    "error": Column(
        "error", "+.1%", "share", "float64", "recomputed over published value, less 1"
    ),
    "table": Column("table", "", "", "str", "name of a table"),
    "rows": Column("rows", "d", "", "int64", "rows of a table"),
    "published_values": Column(
        "values", "d", "", "int64", "published values that are compared"
    ),
    "median_error": Column(
        "median error", ".1%", "share", "float64", "median of absolute errors"
    ),
    "largest_error": Column(
        "largest error", ".1%", "share", "float64", "largest absolute error"
    ),
    "mean_error": Column(
        "mean error", ".1%", "share", "float64", "mean of absolute errors"
    ),
    "equal": Column(
        "equal", "d", "", "int64", "rows that are equal to the published ones"
    ),
    "same": Column("same", "", "", "bool", "whether computed and published are equal"),
    "share_lost": Column(
        "lost", ".3%", "share", "float64", "share of the bytes that is lost"
    ),
    "increase": Column(
        "loss increase",
        "+.4f",
        "nats per token",
        "float64",
        "of the training loss, mean over seeds",
    ),
    "tolerated": Column(
        "tolerated",
        "",
        "",
        "bool",
        "whether it is below the standard deviation over seeds",
    ),
    # ---- import ----------------------------------------------------------------------
    "calls_read": Column("calls", "d", "", "int64", "calls in the imported files"),
    "calls_with_sizes": Column(
        "with sizes", "d", "", "int64", "calls of which bytes or tokens are known"
    ),
    "calls_with_layer": Column("with layer", "d", "", "int64", "stated or inferred"),
    "calls_with_phase": Column("with phase", "d", "", "int64", "stated or inferred"),
    "missing": Column("missing", "", "", "str", "what an import lacks, and why"),
    # ---- export ----------------------------------------------------------------------
    "format": Column("--to", "", "", "str", "file format of another tool"),
    "output": Column("-o", "", "", "str", "suffix of the file's name, or a folder"),
    "contents": Column("contents", "", "", "str", "what a file of the format holds"),
    "read_by": Column("read by", "", "", "str", "tools that read the format"),
    "removed": Column("removed", "", "", "str", "texts that --anonymous removed"),
    "limits": Column("limits", "", "", "str", "what the format cannot represent"),
}


def cell_text(value: Any, form: str = "") -> str:
    """Format a value of a table; unknown values are blank.

    ``form`` is a format of Python's, or one of :data:`QUANTITIES`.

    Examples
    --------
    >>> cell_text(0.25, ".1%"), cell_text(float("nan")), cell_text(True)
    ('25.0%', '', 'yes')
    >>> cell_text(2_500_000, "bytes"), cell_text(1234567), cell_text(-0.0001, ".1%")
    ('2.50 MB', '1,234,567', '0.0%')
    """
    if hasattr(value, "item"):  # numpy's scalars
        value = value.item()
    if isinstance(value, tuple | list):
        ends = [cell_text(end, form) for end in value]
        return " to ".join(ends) if all(ends) else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if not isinstance(value, int | float):
        return visible(value)
    if form in QUANTITIES:
        return QUANTITIES[form](value)
    if form == "d":
        return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.0f}"
    if not form:
        form = ",.0f" if isinstance(value, int) or abs(value) >= 1e4 else ".4g"
    text = format(value, form)
    # what rounds to zero has no sign
    return text if any(map("123456789".__contains__, text)) else text.lstrip("-")


def page() -> str:
    """Return the page ``docs/columns.md``, in Markdown."""
    lines = [
        "# Columns",
        "",
        f"Version {VERSION}. A name means the same in every table of a result: on the "
        "screen, in frames,",
        "in JSON and in files. Unknown numbers are NaN in frames and `null` in JSON.",
        "",
        "| name | heading | unit | type | meaning |",
        "|---|---|---|---|---|",
    ]
    for name, column in COLUMNS.items():
        unit = column.unit or ""
        lines.append(
            f"| `{name}` | {column.heading} | {unit} | {column.dtype} | "
            f"{column.meaning} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
