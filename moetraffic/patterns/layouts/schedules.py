"""Pipeline schedules: in which order a stage runs its passes, and what it hands on.

A pass is of one micro-batch through one *chunk* of layers; with v virtual stages a rank
has v chunks, and chunk c of stage s is number ``c p + s`` of the whole pipeline.

Zero-bubble schedules (Qi et al., arXiv 2401.10241) compute gradients of weights later
than those of inputs, which are what is handed on: H1 has 1F1B's order of passes, H2
begins with more of them.  DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1) feeds
micro-batches from both ends: a rank has the layers of its own place (chunk 0) and of
the mirrored one (chunk 1).

References
----------
Narayanan et al., arXiv 2104.04473, sections 2.2.1 (1F1B, PipeDream-Flush) and 2.2.2
(interleaved); Megatron-LM, ``core/pipeline_parallel/schedules.py``; torch,
``distributed/pipelining/schedules.py`` has the same orders; deepseek-ai/DualPipe,
``dualpipe.py``: the eight steps of ``DualPipe.step``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moetraffic.patterns.rules import Rule, positive, refuse
from moetraffic.patterns.values import Values

SCHEDULES = ("1f1b", "zb-h1", "zb-h2", "dualpipe")
"""Orders of passes; the first is interleaved where a rank has virtual stages."""


class Pass(NamedTuple):
    """A forward or backward pass of one micro-batch through one chunk."""

    backward: bool
    micro_batch: int
    chunk: int = 0


def passes(
    stage: int,
    stages: int,
    micro_batches: int,
    virtual: int = 1,
    schedule: str = "1f1b",
) -> list[Pass]:
    """The passes of a stage, in order.

    Parameters
    ----------
    stage, stages
        This stage, and how many there are p.
    micro_batches
        Of an iteration m.
    virtual
        Chunks of a rank v; 1: the 1F1B schedule.
    schedule
        One of SCHEDULES.

    Raises
    ------
    LayoutError
        If an interleaved schedule has no multiple of p micro-batches, or DualPipe not
        an even number of 2 p and more.

    Examples
    --------
    >>> "".join("B" if p.backward else "F" for p in passes(0, 2, 3))
    'FFBFBB'
    """
    refuse(schedule_rules(stages, micro_batches, virtual, SCHEDULES.index(schedule)))
    if schedule == "dualpipe":
        return _from_both_ends(stage, stages, micro_batches // 2)
    if stages == 1:
        return [Pass(b, i) for i in range(micro_batches) for b in (False, True)]
    total = micro_batches * virtual
    ahead = (stages - stage - 1) * (2 if schedule == "zb-h2" else 1)
    warm_up = ahead if virtual == 1 else 2 * ahead + (virtual - 1) * stages
    warm_up = min(warm_up, total)
    forward = [_pass(n, stages, virtual, backward=False) for n in range(total)]
    backward = [_pass(n, stages, virtual, backward=True) for n in range(total)]
    order = forward[:warm_up]
    for n in range(total - warm_up):
        order += [forward[warm_up + n], backward[n]]
    return order + backward[total - warm_up :]


def schedule_rules(
    pp: Values,
    accumulation: Values,
    virtual: Values,
    schedule: Values,
    shard: Values = 0,
) -> list[Rule]:
    """The rules of a schedule (its place in SCHEDULES), or of arrays of them."""
    several, twice = virtual > 1, schedule == SCHEDULES.index("dualpipe")
    return [
        positive(virtual, "virtual"),
        Rule(
            (shard > 0) & twice,
            "copies of DualPipe are on two stages, not in blocks that shard them, but "
            "shard is {}: leave out --shard",
            (shard,),
        ),
        Rule(
            several & ((pp < 2) | (accumulation % np.maximum(pp, 1) != 0)),
            "an interleaved schedule has several stages and a multiple of them of "
            "micro-batches, but there are {} stages and {} micro-batches: change "
            "--pp, --virtual-stages or the micro-batches",
            (pp, accumulation),
        ),
        Rule(
            (schedule > 0) & ((pp < 2) | several),
            "zero-bubble schedules and DualPipe are of several stages, each of a "
            "rank, but there are {} stages and {} virtual ones of a rank: raise --pp, "
            "or leave out --schedule or --virtual-stages",
            (pp, virtual),
        ),
        Rule(
            twice & ((pp % 2 > 0) | (accumulation % 2 > 0) | (accumulation < 2 * pp)),
            "DualPipe has an even number of stages and of micro-batches, at least two "
            "for each stage, but there are {} stages and {} micro-batches: change "
            "--pp or the micro-batches",
            (pp, accumulation),
        ),
    ]


def handed_on(
    one: Pass, stage: int, stages: int, virtual: int = 1, schedule: str = "1f1b"
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """What a pass waits for and what it hands on, as (source, destination) stages.

    Activations go to the next chunk of the pipeline, gradients to the one before; the
    last stage's next chunk is on the first stage, the wrap-around of an interleaved
    schedule.

    The pairs are before the pass and behind it; None where the model begins or ends.
    """
    if schedule == "dualpipe" and one.chunk:  # the mirrored pipeline
        mirrored = handed_on(one._replace(chunk=0), stages - 1 - stage, stages)
        before, behind = (
            pair and (stages - 1 - pair[0], stages - 1 - pair[1]) for pair in mirrored
        )
        return before, behind
    place, last = one.chunk * stages + stage, stages * virtual - 1
    step = -1 if one.backward else 1
    source, destination = place - step, place + step
    before = (source % stages, stage) if 0 <= source <= last else None
    behind = (stage, destination % stages) if 0 <= destination <= last else None
    return before, behind


def chunk_layers(
    layers: int, stages: int, virtual: int = 1, embedding: int = 0, head: int = 0
) -> tuple[range, ...]:
    """Global layers of each chunk of the pipeline, the first ones get what is over.

    Embedding and head count as so many layers of the first and the last chunk
    (Megatron-LM, ``account_for_embedding_in_pipeline_split``; torchtitan,
    ``generate_llm_fqn_per_model_part``).

    Examples
    --------
    >>> [len(chunk) for chunk in chunk_layers(6, 4, 2, embedding=1, head=1)]
    [0, 1, 1, 1, 1, 1, 1, 0]
    """
    parts = stages * virtual
    each, over = divmod(embedding + layers + head, parts)

    def begin(part: int) -> int:
        place = part * each + min(part, over) - embedding
        return min(max(place, 0), layers)

    return tuple(range(begin(i), begin(i + 1)) for i in range(parts))


def _from_both_ends(stage: int, stages: int, each: int) -> list[Pass]:
    """DualPipe's passes, with ``each`` micro-batches from either end."""
    near = min(stage, stages - 1 - stage)  # to an end
    ahead = stages // 2 - near - 1
    order = "F" * (2 * ahead)
    order += "Ff" * (near + 1)
    order += "bf" * ahead
    order += "FbfB" * (each - stages + near + 1)
    order += "bfB" * ahead
    order += "bB" * (near + 1)
    order += "B" * ahead
    # large letters are the direction that enters at the near end
    found, counts = [], dict.fromkeys("FfBb", 0)
    for letter in order:
        chunk = int(letter.islower()) ^ int(stage >= stages // 2)
        micro_batch = chunk * each + counts[letter]
        found.append(Pass(letter in "Bb", micro_batch, chunk))
        counts[letter] += 1
    return found


def _pass(n: int, stages: int, virtual: int, *, backward: bool) -> Pass:
    """The n-th pass of its direction: p micro-batches of a chunk, then of the next."""
    if virtual == 1:
        return Pass(backward, n)
    round_, place = divmod(n, stages * virtual)
    chunk, within = divmod(place, stages)
    chunk = virtual - 1 - chunk if backward else chunk
    return Pass(backward, round_ * stages + within, chunk)
