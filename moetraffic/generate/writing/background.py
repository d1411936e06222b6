"""Background (dense) traffic of a synthetic run, computed from patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from moetraffic.analysis.pattern_trace import pattern_trace
from moetraffic.arrays import Int64
from moetraffic.errors import LayoutError
from moetraffic.generate.scenario import Scenario
from moetraffic.patterns import Parallelism, Training, Workload, preset
from moetraffic.patterns.workload_pattern import workload_pattern
from moetraffic.trace import Group, Program, Site, Trace

EXCHANGES = frozenset({"routing", "all_to_all"})
"""Operations that a generated run has already."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Background:
    """Background traffic of a data-parallel model with a preset's shape."""

    pattern: Trace  # of one iteration

    @classmethod
    def of(cls, model: str, scenario: Scenario) -> Background:
        """Compute the background traffic of a preset on the scenario's ranks.

        Raises
        ------
        LayoutError
            If there is no such preset, or it cannot be trained so.
        """
        found = preset(model)
        if not found.model.experts:
            raise LayoutError(
                f"background traffic needs a model with experts, but {model} has none: "
                "choose another of moetraffic models"
            )
        shape = replace(found.model, experts=scenario.experts)
        work = Workload(
            model=shape,
            gating=replace(found.gating, k=min(found.gating.k, scenario.experts)),
            layout=Parallelism(dp=scenario.ranks, ep=scenario.ep),
            training=Training(micro_batch=found.micro_batch),
        )
        return cls(pattern=pattern_trace(workload_pattern(work)))

    def beside(
        self,
        sites: Sequence[Site],
        groups: Sequence[Group],
        programs: Sequence[Program],
        order: Int64,
    ) -> tuple[list[Site], list[Group], list[Program], Int64]:
        """Append the background traffic to the tables of the run.

        Parameters
        ----------
        sites, groups, programs
            Of the experts' run.
        order
            ``[S]`` int64: which collective of its group's iteration each site is, -1
            for none.
        """
        its = self.pattern
        keep = [n for n, s in enumerate(its.sites) if s.operation not in EXCHANGES]
        new_groups = list(groups)
        number: dict[int, int] = {}
        for n in keep:
            group = its.sites[n].group
            if group not in number:
                # a group of the same ranks is another communicator of another kind
                if its.groups[group] not in new_groups:
                    new_groups.append(its.groups[group])
                number[group] = new_groups.index(its.groups[group])
        new_sites = list(sites)
        place: dict[int, int] = {}
        counted = dict.fromkeys(range(len(new_groups)), 0)
        for site, told in zip(sites, order, strict=True):
            counted[site.group] = max(counted[site.group], int(told) + 1)
        further = []
        for n in keep:
            place[n] = len(new_sites)
            group = number[its.sites[n].group]
            new_sites.append(replace(its.sites[n], group=group))
            further.append(counted[group])
            counted[group] += 1
        mine = {p.rank: p for p in its.programs}
        new_programs = [
            replace(
                p,
                sites=(*p.sites, *(place[n] for n in mine[p.rank].sites if n in place)),
            )
            for p in programs
        ]
        return (
            new_sites,
            new_groups,
            new_programs,
            np.concatenate([order, np.array(further, np.int64)]),
        )
