"""Experts of each token that a rank dispatches, for backends that move tokens.

This module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import ReplayError
from moetraffic.replay.plan.program import Plan
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Site
from moetraffic.trace.trace import Trace


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """Tokens of one rank in a phase of an exchange."""

    experts: Int64  # [T, k] of each token; -1: none
    count: int  # experts E of the layer; group rank w holds E/W from w E/W on
    row_bytes: int
    phase: str  # of trace.model.PHASES
    exchange: tuple[int, int, int]  # group, layer and slot, which its phases share


class TokenRouting:
    """Experts of the tokens of one rank of a plan, from the trace with their sample.

    Raises
    ------
    ReplayError
        If the trace lacks the experts of some tokens, or ranks hold different numbers
        of experts.
    """

    def __init__(self, trace: Trace, plan: Plan, rank: int) -> None:
        self._trace, self._plan, self._rank = trace, plan, rank
        self._routings = {
            (tuple(sorted(trace.groups[site.group].ranks)), site.layer, site.slot): n
            for n, site in enumerate(trace.sites)
            if site.operation == ROUTING
        }

    def rows(self, operation: int) -> TokenRows | None:
        """Tokens that this rank dispatches; None for what is no expert exchange."""
        plan = self._plan
        site = plan.sites[int(plan.site[operation])]
        if site.operation != ALL_TO_ALL or not site.phase:
            return None
        group = int(plan.group[operation])
        number = self._routings[plan.groups[group], site.layer, site.slot]
        routing = self._trace.sites[number]
        return TokenRows(
            experts=self._experts(number, routing, int(plan.iteration[operation])),
            count=routing.experts,
            row_bytes=site.row_bytes,
            phase=site.phase,
            exchange=(group, site.layer, site.slot),
        )

    def _experts(self, number: int, site: Site, iteration: int) -> Int64:
        trace = self._trace
        at = trace.rows.at(np.array([number]), np.array([iteration]))
        ranks = trace.groups[site.group].ranks
        member = ranks.index(self._rank)
        demand = trace.demand(at)[0, member]
        if trace.meta.k == 1:
            chosen = np.repeat(np.eye(site.experts, dtype=bool), demand, axis=0)
        else:
            chosen = trace.choices(at)[0, member] if site.choices else np.zeros((0, 1))
            chosen = chosen[chosen.any(axis=1)]
        if trace.any_dropped(at) or not np.array_equal(chosen.sum(axis=0), demand):
            raise ReplayError(
                "tokens are dispatched with the experts of each, none dropped, but of "
                f"the {int(demand.sum())} copies of rank {self._rank} in iteration "
                f"{iteration}, layer {site.layer}, the sample of {trace.name} has "
                f"{int(chosen.sum())}: capture with --token-sample of all tokens of a "
                "rank and without a capacity, or use another --backend"
            )
        # as the group's ranks ascend, each with E/W consecutive experts
        holder = np.argsort(np.argsort(ranks))[
            trace.holder(site.layer, site.group, iteration)
        ]
        if len(set(np.bincount(holder, minlength=len(ranks)).tolist())) > 1:
            raise ReplayError(
                "deep_ep needs as many experts on each rank, but the ranks of layer "
                f"{site.layer} hold {np.bincount(holder).tolist()}: use another one"
            )
        order = np.argsort(holder, kind="stable")
        chosen = chosen[:, order]
        first = np.argsort(~chosen, axis=1, kind="stable")[:, : trace.meta.k]
        there = np.take_along_axis(chosen, first, axis=1)
        return np.where(there, first, -1).astype(np.int64)
