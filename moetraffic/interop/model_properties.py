"""Properties of the model that the user states: experts, top-k, tokens, row bytes.

Byte counts alone have no noise floor, which depends on the number of tokens.  It is
stated, or follows from the rows of a dispatch: k rows for each token.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.trace.model import ALL_TO_ALL, ROUTING
from moetraffic.trace.routed import contradiction_of_k

from .imported_call import ImportedCall, ImportedRank
from .importer import ImportedFiles, ImportOptions

BY_USER = "--tokens"
BY_ROWS = "the rows of dispatch, {k} for each token"


def validate_model(options: ImportOptions) -> None:
    """Check that experts and k are those of a model."""
    if options.experts and options.k > options.experts:
        raise TraceError(
            f"a token is sent to distinct experts, but --k is {options.k} and "
            f"--experts {options.experts}: lower --k"
        )


def with_model(read: ImportedFiles, options: ImportOptions) -> ImportedFiles:
    """Apply the stated row bytes and tokens to the calls of all ranks."""
    for record in read.records:
        for call in record.calls:
            if call.operation == ALL_TO_ALL and call.row_bytes <= 0:
                _set_rows(record, call, options.row_bytes)
            elif call.operation == ROUTING:
                _validate_k(record, call, options.k)
    tokens_by = ""
    if options.tokens:
        tokens_by = BY_USER
        for record in read.records:
            record.tokens = {step: options.tokens for step, _, _ in record.steps}
            _validate_tokens(record, options)
    elif options.k:
        for record in read.records:
            record.tokens = _tokens_by_rows(record, options.k)
        if any(record.tokens for record in read.records):
            tokens_by = BY_ROWS.format(k=options.k)
    if not tokens_by:
        return read
    said = f"tokens of each rank and iteration from {tokens_by}"
    return replace(read, inferred=(*read.inferred, said))


def _set_rows(record: ImportedRank, call: ImportedCall, row_bytes: int) -> None:
    """Set the row bytes of a call that has none."""
    if not row_bytes:
        return
    part = next((n for n in [*call.sent, *call.received] if n > 0 and n % row_bytes), 0)
    if part:
        raise TraceError(
            f"{record.source}: rank {record.rank} exchanges {part} bytes in iteration "
            f"{call.iteration}, which are no whole rows of {row_bytes} bytes: change "
            "--row-bytes"
        )
    call.row_bytes = row_bytes


def _validate_k(record: ImportedRank, call: ImportedCall, k: int) -> None:
    """Check that the stated k fits the token copies that a rank routed."""
    if wrong := contradiction_of_k(np.asarray(call.sent, np.int64), k):
        raise TraceError(
            f"{record.source}, rank {record.rank}, iteration {call.iteration}: "
            f"{wrong}: change --k, or leave it out"
        )


def _routed(record: ImportedRank) -> dict[int, dict[int, int]]:
    """Sum the token copies that a rank routed, by iteration and layer."""
    found: defaultdict[int, defaultdict[int, int]] = defaultdict(
        lambda: defaultdict(int)
    )
    for call in record.calls:
        if call.operation == ROUTING and call.direction != "recompute":
            found[call.iteration][call.layer] += int(sum(call.sent))
    return {iteration: dict(layers) for iteration, layers in found.items()}


def _dispatched(record: ImportedRank) -> dict[int, dict[int, int]]:
    """Sum the rows that a rank dispatched, by iteration and layer; -1: unknown."""
    found: defaultdict[int, defaultdict[int, int]] = defaultdict(
        lambda: defaultdict(int)
    )
    for call in record.calls:
        if (call.operation, call.phase) != (ALL_TO_ALL, "dispatch"):
            continue
        if call.direction == "recompute":
            continue
        layers = found[call.iteration]
        known = call.row_bytes > 0 and min(call.sent) >= 0
        if known and layers[call.layer] >= 0:
            layers[call.layer] += int(sum(call.sent)) // call.row_bytes
        else:
            layers[call.layer] = -1
    return {iteration: dict(layers) for iteration, layers in found.items()}


def _validate_tokens(record: ImportedRank, options: ImportOptions) -> None:
    """Check that a rank sends at most k copies of each of its tokens."""
    most = options.tokens * options.k
    for iteration, layers in (*_routed(record).items(), *_dispatched(record).items()):
        for layer, rows in layers.items():
            if most and rows > most:
                raise TraceError(
                    f"{record.source}: rank {record.rank} sends {rows} rows in "
                    f"iteration {iteration}, layer {layer}, which are more than "
                    f"{options.k} for each of {options.tokens} tokens: change --tokens "
                    "or --k"
                )


def _tokens_by_rows(record: ImportedRank, k: int) -> dict[int, int]:
    """Return a rank's tokens by iteration, where its layers agree on whole tokens."""
    found = {}
    for iteration, layers in _dispatched(record).items():
        rows = set(layers.values())
        if len(rows) == 1 and min(rows) > 0 and min(rows) % k == 0:
            found[iteration] = min(rows) // k
    return found
