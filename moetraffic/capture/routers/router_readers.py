"""Readers of router outputs: the number of token copies per expert.

One table, from the name of a router's class to the reader of its output.  A framework
is never imported for it: a class is known by its module and its name, and so is every
subclass of it.  No reader waits for a device: it counts with ``scatter_add`` or sums
of masks, and hands the counts on where they are.

Shapes: T tokens of this rank, k experts a token, E experts, C places of an expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import Tensor, nn

ENTRY_POINTS = "moetraffic.router_readers"
"""Entry points of installed packages: the class's full name, and a function
``(inputs, output) -> ids`` as :func:`.router_hooks.router` takes one."""

EXPERT_COUNTS = (
    *("num_experts", "n_routed_experts", "num_local_experts", "n_experts"),
    *("tot_expert", "num_global_experts", "experts", "expert_num", "n_expert"),
)
"""Attributes in which a router keeps its number of experts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Decision:
    """Expert demand of one router call."""

    demand: Tensor  # [E] int64 token copies routed to each expert, dropped ones too
    dropped: Tensor | None = None  # [E] int64 of these over capacity; None: not told


Reader = Callable[[nn.Module, Sequence[Any], Any], "Decision | None"]
"""``reader(module, inputs, output)``; None where the output tells nothing."""


def chosen(ids: Tensor, experts: int) -> Tensor:
    """Count how often each expert is chosen in ``ids`` of any shape, ``[E]`` int64.

    What is no expert (-1 for a dropped copy, E for padding) is not counted.
    """
    flat = ids.detach().reshape(-1).long()
    is_expert = (flat >= 0) & (flat < experts)
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device)
    return counts.scatter_add_(0, flat.clamp(0, experts - 1), is_expert.long())


def marked(mask: Tensor) -> Tensor:
    """Count the nonzero entries of a mask ``[..., E]`` by expert, ``[E]`` int64."""
    return (mask.detach() != 0).reshape(-1, mask.shape[-1]).sum(0)


def experts_of(module: nn.Module) -> int:
    """Find the number of experts of a router.

    Raises
    ------
    ValueError
        If no attribute has it.
    """
    for holder in (module, getattr(module, "config", None)):
        for name in EXPERT_COUNTS:
            count = getattr(holder, name, None)
            if isinstance(count, int) and count > 0:
                return count
    raise ValueError(
        f"a router of class {type(module).__name__} has none of the attributes "
        f"{', '.join(EXPERT_COUNTS)}: give router() its number of experts"
    )


# ---- one reader a form of output ---------------------------------------------------


def _ids(position: int) -> Reader:
    """Expert ids ``[..., k]`` at a position, the number of experts in the module."""

    def read(module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
        return Decision(demand=chosen(output[position], experts_of(module)))

    return read


def _ids_and_logits(position: int, logits: int) -> Reader:
    """Expert ids at one position and scores ``[T, E]`` at another."""

    def read(_module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
        return Decision(demand=chosen(output[position], output[logits].shape[-1]))

    return read


def _megatron(module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
    """``(probs, routing_map)``, both ``[T, E]``; the map is what capacity left of it.

    Padded to capacity, the map marks padding too, whose probability is 0
    (``apply_router_token_dropping``).  An inference router gives ids in place of the
    map.
    """
    probs, chosen_ = output
    if chosen_.dtype != torch.bool:
        return Decision(demand=chosen(chosen_, experts_of(module)))
    config = getattr(module, "config", None)
    if getattr(config, "moe_pad_expert_input_to_capacity", False):
        chosen_ = chosen_ & (probs.detach() != 0)
    return Decision(demand=marked(chosen_))


def _deepspeed(module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
    """Counts before capacity, and what is left: 7 values since 0.16, 4 before.

    ``(l_aux, C, E, indices [k, T], locations, gates, exp_counts [E])``, an index of -1
    being a dropped copy, or ``(l_aux, combine, dispatch_mask [T, E, C], exp_counts)``.
    The older ``top2gating`` counts first choices alone: only what is sent is told.
    """
    counted = output[-1]
    counts = counted.detach().to(torch.int64)
    if len(output) == 7:
        return Decision(
            demand=counts, dropped=counts - chosen(output[3], counts.numel())
        )
    kept = output[2].detach().to(torch.bool).sum((0, 2))
    if getattr(module, "k", 1) == 2:
        return Decision(demand=kept)
    return Decision(
        demand=counts.to(kept.device), dropped=counts.to(kept.device) - kept
    )


def _fairscale(_module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
    """``(l_aux, combine, dispatch_mask [T, E, C])``: what is sent, drops unknown."""
    return Decision(demand=output[2].detach().to(torch.bool).sum((0, 2)))


def _switch(module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
    """``(mask [B, S, E] after capacity, probability, logits)``.

    The choice before capacity is made again from the logits as
    ``SwitchTransformersTop1Router.forward`` makes it.
    """
    mask, _, logits = output
    owner: Any = module
    dtype: torch.dtype = owner.dtype
    given: torch.dtype = owner.input_dtype
    scores = logits.detach().softmax(-1, dtype=dtype).to(given)
    demand = chosen(scores.argmax(-1), logits.shape[-1])
    return Decision(demand=demand, dropped=demand - marked(mask))


def _nllb(_module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
    """``(top_1_mask, weights [T, E], logits)``: weights are 0 but for copies sent."""
    return Decision(demand=marked(output[1]))


def _jetmoe(_module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
    """``(sorted ids, batch, gates, copies by expert as a list, logits)``."""
    return Decision(demand=torch.tensor(output[3], dtype=torch.int64))


def _top_logits(position: int) -> Reader:
    """Logits ``[T, E]``, whose ``top_k`` largest the layer takes."""

    def read(module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
        logits = output[position] if isinstance(output, tuple) else output
        ids = logits.detach().topk(_k(module), dim=-1).indices
        return Decision(demand=chosen(ids, logits.shape[-1]))

    return read


def _tutel(module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
    """Logits ``[T, E]``; the layer takes the top k of their softmax, capacity aside.

    Raises
    ------
    ValueError
        If the layer adds noise to what the gate gives.
    """
    if module.training and getattr(module, "gate_noise", False):
        raise ValueError("Tutel adds gate_noise to the logits after its gate")
    scores = output.detach().softmax(1)
    return Decision(
        demand=chosen(scores.topk(_k(module), dim=1).indices, output.shape[1])
    )


def _block(module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision | None:
    """A whole layer of transformers 4: ``(hidden, logits [T, E])``, no router in it.

    It takes the top k of ``softmax(logits, dtype=float32)``.  Release 5 has a router
    module in it, which tells instead.
    """
    if not isinstance(output, tuple) or len(output) != 2:
        return None
    scores = output[1].detach().softmax(1, dtype=torch.float32)
    return Decision(
        demand=chosen(scores.topk(_k(module), dim=-1).indices, scores.shape[-1])
    )


def _k(module: nn.Module) -> int:
    k = getattr(module, "top_k", None)
    if not isinstance(k, int):
        raise ValueError(f"a {type(module).__name__} has no number top_k")
    return k


LOGITS_WEIGHTS_IDS = _ids_and_logits(2, 0)
"""``(logits [T, E], weights [T, k], ids [T, k])``: most routers of transformers 5."""

READERS: dict[str, Reader] = {
    # Megatron-Core 0.16, megatron/core/transformer/moe/router.py
    "megatron.core.*.TopKRouter": _megatron,
    # DeepSpeed 0.19, deepspeed/moe/sharded_moe.py and ep_router.py
    "deepspeed.*.TopKGate": _deepspeed,
    "deepspeed.*.TokenChoiceTopKRouter": _ids(1),
    # fairscale 0.4.13, fairscale/nn/moe/top2gate.py
    "fairscale.*.Top2Gate": _fairscale,
    # torchtitan 0.1 to 0.3, torchtitan/models/common/moe.py (before: models/moe/moe.py)
    "torchtitan.*.TokenChoiceTopKRouter": _ids(1),
    # transformers 5.23, src/transformers/models/*/modeling_*.py
    "transformers.models.*.SwitchTransformersTop1Router": _switch,
    "transformers.models.*.NllbMoeTop2Router": _nllb,
    "transformers.models.*.JetMoeTopKGating": _jetmoe,
    "transformers.models.*.Llama4Router": _top_logits(1),
    "transformers.models.*.*TopKRouter": LOGITS_WEIGHTS_IDS,
    "transformers.models.*.*TopkRouter": LOGITS_WEIGHTS_IDS,
    "transformers.models.*.*TokenChoiceRouter": LOGITS_WEIGHTS_IDS,
    "transformers.models.*.*HashRouter": LOGITS_WEIGHTS_IDS,
    "transformers.models.*.Gemma4TextRouter": LOGITS_WEIGHTS_IDS,
    "transformers.models.*.DiffusionGemmaTextRouter": LOGITS_WEIGHTS_IDS,
    "transformers.models.*.HunYuanMoEV1Gate": LOGITS_WEIGHTS_IDS,
    "transformers.models.*.ZayaRouter": LOGITS_WEIGHTS_IDS,
    # transformers 4, whose routers are plain linear layers
    "transformers.models.*.MixtralSparseMoeBlock": _block,
    "transformers.models.*.Qwen2MoeSparseMoeBlock": _block,
    "transformers.models.*.Qwen3MoeSparseMoeBlock": _block,
    "transformers.models.*.OlmoeSparseMoeBlock": _block,
    # models that bring their code: DeepSeek-V2 and -V3, Moonlight, Kimi
    "transformers_modules.*.MoEGate": _ids(0),
    # megablocks 0.5 to 0.10, megablocks/layers/router.py
    "megablocks.*.LearnedRouter": _ids_and_logits(-1, 0),
    # fastmoe 1.2, fmoe/gates/*.py
    "fmoe.gates.*Gate": _ids(0),
    # Tutel 0.3, tutel/gates/{top,cosine_top}.py
    "tutel.gates.*Gate": _tutel,
}
"""Readers by the pattern of a class's full name; the first that matches counts."""

_registered: dict[str, Reader] = {}  # what users registered, before the table


def register(name: str, reader: Reader) -> Callable[[], None]:
    """Register a reader for a router class; return the function that removes it."""
    _registered[name] = reader

    def undo() -> None:
        if _registered.get(name) is reader:
            del _registered[name]

    return undo


def reader_for(kind: type) -> Reader | None:
    """Find the reader of a module's class; None if it is not a known router."""
    for ancestor in kind.__mro__:
        name = full_name(ancestor)
        for pattern, reader in (*_registered.items(), *READERS.items()):
            if fnmatchcase(name, pattern):
                return reader
        if name in _installed():
            return _installed()[name]
        if ancestor is nn.Module:
            break
    return None


def full_name(kind: type) -> str:
    """``module.Class`` of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def reader_of_ids(
    read: Callable[[Sequence[Any], Any], Any], experts: int | None
) -> Reader:
    """Create a reader from a function ``(inputs, output) -> ids``.

    Ids are integers of any shape, a bool mask ``[..., E]``, or None for "nothing
    routed".
    """

    def reader(
        module: nn.Module, inputs: Sequence[Any], output: Any
    ) -> Decision | None:
        ids = read(inputs, output)
        if ids is None:
            return None
        if not isinstance(ids, Tensor) or ids.is_floating_point():
            raise ValueError(
                f"expert ids are integers or a mask, not {type(ids).__name__}"
            )
        if ids.dtype == torch.bool:
            return Decision(demand=marked(ids))
        return Decision(demand=chosen(ids, experts or experts_of(module)))

    return reader


_found: dict[str, Reader] | None = None


def _installed() -> dict[str, Reader]:
    """Load the readers of installed packages."""
    global _found
    if _found is None:
        _found = {
            point.name: reader_of_ids(point.load(), None)
            for point in entry_points(group=ENTRY_POINTS)
        }
    return _found
