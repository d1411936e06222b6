"""A model's shape in another size: what is not chosen follows in proportion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from moetraffic.patterns.shape import BYTES, ModelShape

SIZES = (
    *("layers", "hidden", "heads", "kv_heads", "head_size", "experts"),
    *("ffn", "expert_ffn", "shared_ffn"),
)
"""Fields whose choice makes a model of another size."""

_WITH_HIDDEN = ("ffn", "expert_ffn", "shared_ffn", "query_rank", "kv_rank")


def scaled(shape: ModelShape, chosen: Mapping[str, Any]) -> ModelShape:
    """A shape with some fields chosen anew, others in proportion.

    - With ``hidden``, every width (``ffn``, ``expert_ffn``, ``shared_ffn``) and rank of
      latent attention keeps its ratio to ``hidden``, rounded.
    - The number of ``heads`` stays; a head's sizes change so that all heads together
      keep their ratio to ``hidden``, rounded to even numbers where they are rotated.
    - With ``heads``, ``kv_heads`` keep their ratio to them: the next smaller divisor.
    - With ``layers``, the encoder's layers and the dense layers in front keep their
      share of them, one at least.
    - With ``sequence``, ``target_sequence`` keeps its ratio.
    - A model of another size reads bytes: its vocabulary is 256, an encoder's 257 (a
      mask beside them).

    What is 0 because it is derived stays 0.

    Parameters
    ----------
    shape
        To begin with.
    chosen
        Values by field name; they stay as they are.  A field that is absent follows.

    Returns
    -------
    ModelShape
        It need not be sound: see :func:`~moetraffic.patterns.shape.broken_rules`.
    """
    known = {f.name for f in fields(ModelShape)}
    new: dict[str, Any] = {n: v for n, v in chosen.items() if n in known}
    resized = any(n in new and new[n] != getattr(shape, n) for n in SIZES)
    follow = _following(shape, new) if _countable(new) else {}
    if resized:
        follow["vocabulary"] = BYTES + int(shape.masked)
        follow["name"] = shape.name.removesuffix(", scaled") + ", scaled"
    return replace(shape, **{**follow, **new})


def _countable(new: Mapping[str, Any]) -> bool:
    """Whether ratios can be taken; otherwise a rule of shapes says why not."""
    return all(new.get(n, 1) >= 1 for n in ("layers", "hidden", "heads", "sequence"))


def _following(shape: ModelShape, new: Mapping[str, Any]) -> dict[str, Any]:
    m = shape
    width = new.get("hidden", m.hidden) / m.hidden
    depth = new.get("layers", m.layers) / m.layers
    heads = new.get("heads", m.heads)
    a_head = width * m.heads / heads
    follow: dict[str, Any] = {
        name: _share(getattr(m, name), width) for name in _WITH_HIDDEN
    }
    even = m.positions == "rotary" and not m.kv_rank
    follow["head_size"] = _share(m.head_size, a_head, even=even)
    follow["rope_size"] = _share(m.rope_size, a_head, even=True)
    follow["value_size"] = _share(m.value_size, a_head)
    if m.kv_heads:
        most = _share(m.kv_heads, heads / m.heads)
        follow["kv_heads"] = max(d for d in range(1, most + 1) if heads % d == 0)
    follow["encoder_layers"] = _share(m.encoder_layers, depth)
    follow["moe_first"] = _share(m.moe_first, depth)
    if m.two_stacks and "layers" in new:
        most = max(new["layers"] - 1, 1)
        follow["encoder_layers"] = min(follow["encoder_layers"], most)
    longer = new.get("sequence", m.sequence) / m.sequence
    follow["target_sequence"] = _share(m.target_sequence, longer)
    return follow


def _share(size: int, ratio: float, *, even: bool = False) -> int:
    """``size`` in proportion, 1 (2 if even) at least; 0 stays 0."""
    if size == 0:
        return 0
    step = 2 if even else 1
    return max(step, step * round(size * ratio / step))
