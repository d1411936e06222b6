"""Claims about the load of an exchange: skew, movement over time, predictability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moetraffic.trace import Meta
from moetraffic.trace.iterations import regular_stretch

from .claim import NAN, SAME, SINCE, Claim, Outcome
from .conclusion import (
    CLAIMED,
    Subject,
    load_counts,
    sent_tokens,
    tokens_of,
    unchanging,
)
from .convergence.level_changes import Levels
from .convergence.level_claims import level_claims
from .exchange import Rows, Source
from .forecast.forecast_claims import forecast_claims, matrix_claim
from .forecast.forecasting import forecast
from .noise.skew_claims import skew_claims

ABSOLUTE = ("imbalanced", "skewed", "collapsed")
"""Claims about the loads themselves, not their variation: of a constant load, too."""


def exchange_claims(
    source: Source,
    rows: Rows,
    meta: Meta,
    subjects: Sequence[Subject],
    levels: Levels | None,
) -> tuple[Claim, ...]:
    """Test what the load of an exchange shows beyond sampling noise.

    Computed from the demand of the experts if known, else from the bytes that the
    ranks received, in units of rows; one claim is about their matrix.

    Parameters
    ----------
    subjects
        Statistics of the exchange, with the forecasts of the load.
    levels
        Of the load, as of :func:`.conclusion.load_levels`.

    Returns
    -------
    tuple of Claim
        Empty where neither demand nor bytes are known.
    """
    ranks = f"ranks {source.ranks[0]} to {source.ranks[-1]}"
    where = f"layer {source.layer}, {ranks}"
    counts, unit = load_counts(rows)
    if levels is None or counts is None:
        return ()
    if "demand.load" in rows:
        of_rank = tokens_of(source, rows, meta, [])
        tokens = None if of_rank is None else of_rank * len(source.ranks)
        # where the trace has no usable k, tokens are unknown, too
        k = min(max(1, meta.k), counts.shape[1])
        about = f"expert load of {where}"
    else:
        # rows that go to another rank: of a token's k copies no two go to one expert,
        # which makes their counts vary less than those of independent copies
        known = unit > 1 and sent_tokens(source, rows, meta) is not None
        tokens = counts.sum(axis=1) if known else None
        k, about = 1, f"bytes received, {source.phase} of {where}"
    name, matrix = CLAIMED["demand.load" in rows]
    of_load = (
        *skew_claims(counts, tokens=tokens, k=k, about=about),
        *level_claims(
            counts,
            tokens=tokens,
            k=k,
            at=source.iterations,
            elapsed=source.elapsed,
            about=about,
            item="expert" if "demand.load" in rows else "rank",
            levels=levels,
        ),
    )
    found = [replace(claim, subject=name) for claim in of_load]
    since = levels.last
    series = {name: counts, matrix: rows[f"{matrix}.cells"]}
    for subject in subjects:
        if subject.forecasts is None or subject.name not in series:
            continue
        judged = subject.forecasts
        limits: tuple[str, ...] = ()
        if since:
            ahead = [each.horizon for each in judged.horizons]
            stretch, spacing = regular_stretch(source.elapsed[since:])
            judged = forecast(
                series[subject.name][since:][stretch], horizons=ahead, spacing=spacing
            )
            begin = source.iterations[since]
            limits = (f"{SINCE}{begin} on, as the level changes before",)
        made = (
            forecast_claims(judged, about=about)
            if subject.name == name
            else (matrix_claim(judged, about=f"{matrix} matrix of {where}"),)
        )
        found += [
            replace(
                claim,
                subject=subject.name,
                left_out=since,
                needs=since + claim.needs,
                flags=(*claim.flags, *limits),
            )
            for claim in made
        ]
    same = set(unchanging(source, rows))
    if len(counts) > 1 and (counts == counts[0]).all():
        same.add(name)
    return tuple(_untested(c) if c.subject in same else c for c in found)


def _untested(claim: Claim) -> Claim:
    """Withdraw a claim whose null hypothesis is a variation that there is not."""
    if claim.name in ABSOLUTE or claim.untested:
        return claim
    return replace(
        claim,
        outcome=Outcome.NO_EVIDENCE,
        statement="",
        p=NAN,
        figure=NAN,
        chance=NAN,
        low=NAN,
        high=NAN,
        needs=0,
        flags=(SAME,),
    )
