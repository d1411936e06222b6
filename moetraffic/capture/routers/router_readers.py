"""Compute the token copies per expert from the outputs of known router classes.

A table maps the name of a router class to the reader of its output.  No framework is
imported: a class and its subclasses are recognized by module and name.  Readers do not
synchronize with a device: they count with ``scatter_add`` or sums of masks, and return
the counts on the device.

Shapes: T tokens of this rank, k experts per token, E experts, C capacity.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from moetraffic.capture.validation import OUTSIDE
from moetraffic.errors import CaptureError
from moetraffic.trace.model import NONE_BEFORE

ENTRY_POINTS = "moetraffic.router_readers"
"""Entry points of installed packages: the class's full name, and a function
``(inputs, output) -> ids`` as in :func:`.router_hooks.router`."""

EXPERT_COUNTS = (
    *("num_experts", "n_routed_experts", "num_local_experts", "n_experts"),
    *("tot_expert", "num_global_experts", "experts", "expert_num", "n_expert"),
)
"""Attributes of routers that hold the number of experts."""


class Decision(NamedTuple):
    """Expert demand of one router call."""

    demand: Tensor  # [E] int64 token copies routed to each expert, dropped ones too
    # [E] int64 of these over capacity; -1: unknown, or NONE_BEFORE; None: unknown
    dropped: Tensor | None = None
    # the experts of each token, ids [..., k] or a mask [..., E]; None: unknown
    chosen: Callable[[], Tensor] | None = None
    k: int = 0  # experts of each token; 0: unknown


Reader = Callable[[nn.Module, Sequence[Any], Any], "Decision | None"]
"""``reader(module, inputs, output)``; returns None if nothing was routed."""


def copies(ids: Tensor, experts: int) -> Tensor:
    """Count how often each expert is chosen in ``ids`` of any shape, ``[E]`` int64.

    Other values (-1 for a dropped copy, E for padding) are not counted.
    """
    flat = ids.detach().reshape(-1).long()
    is_expert = (flat >= 0) & (flat < experts)
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device)
    return counts.scatter_add_(0, flat.clamp(0, experts - 1), is_expert.long())


def _of_ids(
    ids: Tensor, experts: int, inputs: Sequence[Any] = (), *, exact: bool = False
) -> Decision:
    """Create the decision of expert ids ``[..., k]``; flat ids have unknown tokens.

    Unless the number of experts is ``exact``, an id that is neither an expert nor -1
    makes the demand invalid, see :data:`~.validation.OUTSIDE`.
    """
    ids = ids.detach()
    demand, k = copies(ids, experts), experts_per_token(ids, inputs, experts)
    if ids.numel() and not exact:
        least, most = ids.aminmax()
        wrong = torch.where(most >= experts, most.long(), least.long())
        outside = (most >= experts) | (least < -1)
        demand = torch.where(outside, OUTSIDE + wrong, demand)
    dropped = None
    if k and ids.dim() > 1 and _tokens(inputs):
        # ids of all tokens, or what is left of them after a capacity
        dropped = torch.where(demand.sum() == ids.numel(), NONE_BEFORE, -1)
    return Decision(demand, dropped, (lambda: ids) if ids.dim() > 1 else None, k)


def _of_mask(mask: Tensor) -> Decision:
    """Create the decision of a mask ``[..., E]`` of chosen experts, of any type."""
    chosen = mask.detach() != 0
    demand = chosen.reshape(-1, mask.shape[-1]).sum(0)
    return Decision(demand, chosen=lambda: chosen)


def experts_per_token(ids: Tensor, inputs: Sequence[Any], experts: int) -> int:
    """Infer k from the shapes of expert ids and of a router's inputs; 0: unknown.

    Without an input ``[..., H]``, k is the length of a row of ids ``[T, k]`` on the
    host whose experts all differ: ids ``[B, S]`` of top-1 routing have no such rows.
    """
    tokens, k = _tokens(inputs), 0
    if tokens:
        k = ids.numel() // tokens if ids.numel() % tokens == 0 else 0
    elif ids.dim() == 2 and ids.is_cpu and ids.numel():
        ordered = ids.detach().sort(dim=1).values
        k = ids.shape[1] if bool((ordered[:, 1:] != ordered[:, :-1]).all()) else 0
    return k if k <= experts else 0


def _tokens(inputs: Sequence[Any]) -> int:
    """Count the rows of the first floating-point input; 0 if there is none."""
    rows = (
        x.numel() // max(1, x.shape[-1])
        for x in inputs
        if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1
    )
    return next(rows, 0)


def experts_of(module: nn.Module) -> int:
    """Find the number of experts of a router, or raise a CaptureError."""
    for holder in (module, getattr(module, "config", None)):
        for name in EXPERT_COUNTS:
            count = getattr(holder, name, None)
            if isinstance(count, int) and count > 0:
                return count
    # the remedy first: what is stored of an omitted record is cut off at 200 characters
    raise CaptureError(
        f"capture.router({type(module).__name__}, ..., experts=E) is needed, because "
        "the number of experts E is not an attribute of this router, such as "
        "num_experts"
    )


# ---- one reader a form of output ---------------------------------------------------


def _ids(position: int, logits: int | None = None) -> Reader:
    """Create a reader of expert ids ``[..., k]`` at one position of the output.

    The number of experts is that of the scores ``[T, E]`` at another position, or else
    an attribute of the router.
    """

    def read(module: nn.Module, inputs: Sequence[Any], output: Any) -> Decision:
        if logits is None:
            return _of_ids(output[position], experts_of(module), inputs)
        return _of_ids(output[position], output[logits].shape[-1], inputs, exact=True)

    return read


def _largest(scores_of: Callable[[Any], Tensor]) -> Reader:
    """Create a reader of each token's ``module.top_k`` largest scores ``[T, E]``."""

    def read(module: Any, _inputs: Sequence[Any], output: Any) -> Decision:
        if module.training and getattr(module, "gate_noise", False):
            raise ValueError("Tutel adds gate_noise to the logits after its gate")
        scores = scores_of(output).detach()
        ids = scores.topk(module.top_k, dim=-1).indices
        return _of_ids(ids, scores.shape[-1], (scores,), exact=True)

    return read


def _megatron(module: nn.Module, inputs: Sequence[Any], output: Any) -> Decision:
    """Read ``(probs, routing_map)``, both ``[T, E]``, after capacity.

    Padding to capacity is marked, too, with the probability 0.  An inference router
    returns ids instead of the map.
    """
    probs, routed = output
    if routed.dtype != torch.bool:
        return _of_ids(routed, experts_of(module), inputs)
    config = getattr(module, "config", None)
    if getattr(config, "moe_pad_expert_input_to_capacity", False):
        routed = routed & (probs.detach() != 0)
    return _of_mask(routed)


def _deepspeed(_module: nn.Module, _inputs: Sequence[Any], output: Any) -> Decision:
    """Read ``(l_aux, C, E, indices [k, T], locations, gates, exp_counts [E])``.

    An index of -1 is a dropped copy.
    """
    if len(output) != 7:
        raise ValueError("routers of DeepSpeed are read from release 0.16 on")
    ids, counts = output[3].detach(), output[6].detach().to(torch.int64)
    dropped = counts - copies(ids, counts.numel())
    return Decision(counts, dropped, lambda: ids.reshape(-1, ids.shape[-1]).T)


LOGITS_WEIGHTS_IDS = _ids(2, 0)
"""``(logits [T, E], weights [T, k], ids [T, k])``: most routers of transformers 5."""

TRANSFORMERS: dict[str, Reader] = {
    # transformers 5.23, src/transformers/models/*/modeling_*.py
    # (mask [B, S, E] after capacity, _, logits)
    "SwitchTransformersTop1Router": lambda _module, _inputs, output: _of_mask(
        output[0]
    ),
    # (mask, weights [T, E], _), weights of 0 being dropped
    "NllbMoeTop2Router": lambda _module, _inputs, output: _of_mask(output[1]),
    "Llama4Router": _largest(lambda output: output[1]),
    **dict.fromkeys(
        (
            *("*TopKRouter", "*TopkRouter", "*TokenChoiceRouter", "*HashRouter"),
            *("Gemma4TextRouter", "DiffusionGemmaTextRouter", "ZayaRouter"),
            "HunYuanMoEV1Gate",
        ),
        LOGITS_WEIGHTS_IDS,
    ),
}
READERS: dict[str, Reader] = {
    # Megatron-Core 0.16, megatron/core/transformer/moe/router.py
    "megatron.core.*.TopKRouter": _megatron,
    # DeepSpeed 0.19, deepspeed/moe/sharded_moe.py and ep_router.py
    "deepspeed.*.TopKGate": _deepspeed,
    "deepspeed.*.TokenChoiceTopKRouter": _ids(1),
    # fairscale 0.4.13, fairscale/nn/moe/top2gate.py
    # (l_aux, combine, sent copies [T, E, C])
    "fairscale.*.Top2Gate": lambda _module, _inputs, output: _of_mask(output[2].any(2)),
    # torchtitan 0.1 to 0.3, torchtitan/models/common/moe.py (before: models/moe/moe.py)
    "torchtitan.*.TokenChoiceTopKRouter": _ids(1),
    **{f"transformers.models.*.{kind}": r for kind, r in TRANSFORMERS.items()},
    # models with remote code: DeepSeek-V2 and -V3, Moonlight, Kimi
    "transformers_modules.*.MoEGate": _ids(0),
    # megablocks 0.5 to 0.10, megablocks/layers/router.py
    "megablocks.*.LearnedRouter": _ids(-1, 0),
    # fastmoe 1.2, fmoe/gates/*.py
    "fmoe.gates.*Gate": _ids(0),
    # Tutel 0.3, tutel/gates/{top,cosine_top}.py; before capacity
    "tutel.gates.*Gate": _largest(lambda logits: logits.softmax(1)),
}
"""Readers by pattern of a class's full name; the first match is used."""

_registered: dict[str, Reader] = {}
"""Readers registered by users, which take precedence over the table."""
_by_class: WeakKeyDictionary[type, Reader | None] = WeakKeyDictionary()


def register(name: str, reader: Reader) -> Callable[[], None]:
    """Register a reader for a router class; return the function that removes it."""
    _registered[name] = reader
    _by_class.clear()

    def undo() -> None:
        if _registered.get(name) is reader:
            del _registered[name]
            _by_class.clear()

    return undo


def reader_for(kind: type) -> Reader | None:
    """Find the reader of a module's class; None if it is not a known router."""
    if kind in _by_class:
        return _by_class.get(kind)
    tables = (_registered, READERS, _installed())
    matches = (
        reader
        for ancestor in itertools.takewhile(lambda c: c is not nn.Module, kind.__mro__)
        for table in tables
        for pattern, reader in table.items()
        if fnmatchcase(full_name(ancestor), pattern)
    )
    match = _by_class[kind] = next(matches, None)
    return match


def full_name(kind: type) -> str:
    """Return ``module.Class`` of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def reader_of_ids(
    read: Callable[[Sequence[Any], Any], Any], experts: int | None
) -> Reader:
    """Create a reader from a function as in :func:`.router_hooks.router`."""

    def reader(
        module: nn.Module, inputs: Sequence[Any], output: Any
    ) -> Decision | None:
        function = f"the function of capture.router for {type(module).__name__}"
        try:
            ids = read(inputs, output)
        except Exception as error:
            raise CaptureError(
                f"{function} failed: {error or type(error).__name__} (the router "
                f"returned {_described(output)})"
            ) from error
        if ids is None:
            return None
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.is_complex():
            raise CaptureError(
                f"{function} returned {_described(ids)}, not a tensor of integer ids "
                "or a bool mask: return the ids"
            )
        if ids.dtype == torch.bool:
            return _of_mask(ids)
        return _of_ids(ids, experts or experts_of(module), inputs)

    return reader


def _described(value: Any) -> str:
    """Describe what a router, or a function of its output, returned."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    length = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"a {type(value).__name__}{length}"


@lru_cache(maxsize=1)
def _installed() -> dict[str, Reader]:
    """Load the readers that installed packages register by entry points."""
    return {
        point.name: reader_of_ids(point.load(), None)
        for point in entry_points(group=ENTRY_POINTS)
    }
