"""Pipeline schedules: in which order a stage runs its passes, and what it hands on.

A pass is of one micro-batch through one *chunk* of layers; with v virtual stages a rank
has v chunks, and chunk c of stage s is number ``c p + s`` of the whole pipeline.

References
----------
Narayanan et al., arXiv 2104.04473, sections 2.2.1 (1F1B, PipeDream-Flush) and 2.2.2
(interleaved); Megatron-LM, ``core/pipeline_parallel/schedules.py``; torch,
``distributed/pipelining/schedules.py`` has the same orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moetraffic.errors import LayoutError


class Pass(NamedTuple):
    """A forward or backward pass of one micro-batch through one chunk."""

    backward: bool
    micro_batch: int
    chunk: int = 0


def passes(stage: int, stages: int, micro_batches: int, virtual: int = 1) -> list[Pass]:
    """The passes of a stage, in order.

    Parameters
    ----------
    stage, stages
        This stage, and how many there are p.
    micro_batches
        Of an iteration m.
    virtual
        Chunks of a rank v; 1: the 1F1B schedule.

    Raises
    ------
    LayoutError
        If an interleaved schedule has no multiple of p micro-batches.

    Examples
    --------
    >>> "".join("B" if p.backward else "F" for p in passes(0, 2, 3))
    'FFBFBB'
    """
    if virtual > 1 and (stages == 1 or micro_batches % stages):
        raise LayoutError(
            "an interleaved schedule has several stages and a multiple of them of "
            f"micro-batches, but there are {stages} stages and {micro_batches} "
            "micro-batches: change --pp, --virtual or --accumulation"
        )
    if stages == 1:
        return [Pass(b, i) for i in range(micro_batches) for b in (False, True)]
    total = micro_batches * virtual
    ahead = stages - stage - 1
    warm_up = ahead if virtual == 1 else 2 * ahead + (virtual - 1) * stages
    warm_up = min(warm_up, total)
    forward = [_pass(n, stages, virtual, backward=False) for n in range(total)]
    backward = [_pass(n, stages, virtual, backward=True) for n in range(total)]
    order = forward[:warm_up]
    for n in range(total - warm_up):
        order += [forward[warm_up + n], backward[n]]
    return order + backward[total - warm_up :]


def handed_on(
    one: Pass, stage: int, stages: int, virtual: int = 1
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """What a pass waits for and what it hands on, as (source, destination) stages.

    Activations go to the next chunk of the pipeline, gradients to the one before; the
    last stage's next chunk is on the first stage, the wrap-around of an interleaved
    schedule.

    Returns
    -------
    pair or None, pair or None
        Before the pass, and behind it; None where the model begins or ends.
    """
    place, last = one.chunk * stages + stage, stages * virtual - 1
    step = -1 if one.backward else 1
    source, destination = place - step, place + step
    before = (source % stages, stage) if 0 <= source <= last else None
    behind = (stage, destination % stages) if 0 <= destination <= last else None
    return before, behind


def chunk_layers(layers: int, stages: int, virtual: int = 1) -> tuple[range, ...]:
    """Global layers of each chunk of the pipeline, the first ones get what is over."""
    parts = stages * virtual
    each, over = divmod(layers, parts)

    def begin(part: int) -> int:
        return part * each + min(part, over)

    return tuple(range(begin(i), begin(i + 1)) for i in range(parts))


def messages(
    stages: int, micro_batches: int, virtual: int = 1
) -> Iterator[tuple[int, int]]:
    """(source, destination) of every message of an iteration of one pipeline."""
    for stage in range(stages):
        for one in passes(stage, stages, micro_batches, virtual):
            _, behind = handed_on(one, stage, stages, virtual)
            if behind is not None:
                yield behind


def _pass(n: int, stages: int, virtual: int, *, backward: bool) -> Pass:
    """The n-th pass of its direction: p micro-batches of a chunk, then of the next."""
    if virtual == 1:
        return Pass(backward, n)
    round_, place = divmod(n, stages * virtual)
    chunk, within = divmod(place, stages)
    chunk = virtual - 1 - chunk if backward else chunk
    return Pass(backward, round_ * stages + within, chunk)
