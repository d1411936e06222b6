"""What Megatron-LM's parallelism sends in an iteration, call by call.

Passes and layers are :mod:`.stage` and :mod:`.layer_calls`; here what is held, and how
an iteration ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .element_types import element_bytes
from .layouts.configuration import Configuration
from .layouts.parallelism import Parallelism
from .layouts.violations import violations
from .pattern import Call, Pattern
from .rules import Rule, refuse
from .shape import ModelShape
from .stage import Shares, Stage, control, pattern_of
from .tensors import ModelTensor, model_tensors, sees_own_tokens
from .workloads.routers import Gating


def megatron_pattern(
    shape: ModelShape,
    plan: Parallelism,
    gating: Gating | None = None,
    *,
    shares: Shares = (),
) -> Pattern:
    """The collectives of one iteration, all ranks.

    Parameters
    ----------
    shape
        The model.
    plan
        How it is trained.
    gating
        Of a mixture of experts.  Where routing decides how much is sent, all experts
        are taken to get as much, and the calls' ``exact`` is false.
    shares
        Of an exchange's token copies, by expert-parallel rank, as measured: a row for
        each measured layer, which layers with experts follow in proportion; empty:
        equal.

    Raises
    ------
    LayoutError
        If the model cannot be spread so.
    """
    gating = gating or Gating(k=1)
    imbalance = plan.ep * max(map(max, shares)) if shares else 1
    refuse(
        [
            *violations(Configuration.of(shape, plan, gating, imbalance=imbalance)),
            Rule(
                {plan.ep, *map(len, shares)} != {plan.ep},
                "there is a share for each expert-parallel rank, but there are {} for "
                "ep {}: give as many",
                (len(shares[0]) if shares else 0, plan.ep),
            ),
            Rule(
                bool(shares)
                and (
                    plan.dispatcher != "plain"
                    or plan.expert_tp > 1
                    or gating.dispatch == "padded"
                ),
                "measured shares of ranks are of whole experts whose tokens one "
                "all-to-all sends, but dispatcher, etp and dispatch are {}, {} and "
                "{}: use --dispatcher plain, --etp 1 and --dispatch dropless",
                (plan.dispatcher, plan.expert_tp, gating.dispatch),
            ),
        ]
    )
    return pattern_of(
        [_Stage(shape, plan, gating, n, shares=shares) for n in range(plan.pp)]
    )


@dataclass(frozen=True)
class _Stage(Stage):
    """What the ranks of one pipeline stage call."""

    def end(self) -> list[Call]:
        """Behind the last backward pass (``finalize_model_grads.py``)."""
        plan = self.plan
        gradient = element_bytes(plan.gradients)
        own = sum(t.elements for t in self.dense if sees_own_tokens(t))
        calls = self.sync.at("gradients")
        calls += self.listed(self.layer_calls.norms(own, gradient))
        calls += self.embedding_sync()
        shards = plan.synchronized not in ("all-reduce", "ddp", "oss")
        if plan.world > 1 and (shards or plan.tp * plan.pp > 1):
            group = "world" if shards else "mp"
            calls.append(control(group, "all_reduce", 4, "gradient_norm", "float32"))
        return calls + self.sync.at("parameters")

    @cached_property
    def tensors(self) -> list[ModelTensor]:
        """What a rank of this stage holds."""
        grid = self.plan
        held: list[ModelTensor] = []
        for chunk in self.chunks:
            for t in model_tensors(
                self.shape,
                layers=chunk.layers,
                ends=(chunk.first, chunk.last),
                vocabulary_split=grid.tp,
            ):
                tp = grid.expert_tp if t.part == "expert" else grid.tp
                if t.name == "token.weight" and t.name in {h.name for h in held}:
                    continue  # both ends of a tied model share it
                held.append(t.on_rank(tp=tp, ep=grid.ep))
        return held
