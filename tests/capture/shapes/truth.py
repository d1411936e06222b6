"""What a rank sends, logged by the program that sends it.

Nothing here knows of moetraffic: a program calls a :class:`Truth` in place of
torch.distributed, which logs the call and makes it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Annotation = Callable[..., contextlib.AbstractContextManager[None]]
GRADIENTS = {"dispatch": "dispatch_grad", "combine": "combine_grad"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in the model a collective is called; the judge compares it."""

    layer: int = -1  # MoE layer, or the layer of an attention's all-to-all
    phase: str = ""
    label: str = ""  # "count_exchange", or a name of the program's own
    micro_batch: int = 0

    def gradient(self) -> Place:
        return replace(self, phase=GRADIENTS.get(self.phase, ""))


@dataclass(frozen=True, kw_only=True)
class Call:
    """A collective of this rank."""

    operation: str
    kind: str  # of the group: "ep", "dp", "pp", "sp"
    ranks: list[int]
    place: Place
    direction: str  # "" outside of a model's passes
    step: int
    sent: list[int]  # bytes to each member; of other operations the input buffer's
    received: list[int]  # bytes from each member; of other operations empty
    aside: bool  # a pass without gradients, which may count as an evaluation


class Truth:
    """Log of a rank: its collectives in order of issue, its steps and losses."""

    def __init__(
        self,
        path: Path,
        *,
        annotate: Annotation | None = None,
        stepped: Callable[..., None] | None = None,
    ) -> None:
        self.path, self._stepped = path, stepped
        self.annotate: Annotation = annotate or (lambda **_: contextlib.nullcontext())
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.calls: list[Call] = []
        self.kinds: list[str] = []  # of the steps
        self.optimized: list[bool] = []  # the step called an optimizer or a scaler
        self.losses: list[float] = []
        self.routings: list[tuple[int, list[int]]] = []  # layer, copies to each expert
        self.micro_batch = 0
        self.inside = False  # autograd runs
        self.lifted: list[str] = []  # operations that a framework calls by itself
        self.aside = False  # the calls are those of a teacher, or of a rollout
        self.renumbered = False  # several models: only which layers are one counts

    def __deepcopy__(self, _: Any) -> Truth:
        return self  # of a model that is copied

    # ---- the run -----------------------------------------------------------------

    @contextlib.contextmanager
    def backward_pass(self) -> Iterator[None]:
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    def backward(self, loss: torch.Tensor, gradient: Any = None) -> None:
        with self.backward_pass():
            loss.backward(gradient)

    def stepped(
        self, loss: Any = float("nan"), kind: str = "train", *, optimized: bool = True
    ) -> None:
        """End a step of the program, which called an optimizer or no optimizer."""
        self.losses.append(float(loss))
        self.kinds.append(kind)
        self.optimized.append(optimized)
        self.micro_batch = 0
        if self._stepped is not None:
            self._stepped(loss=self.losses[-1], kind=kind)

    def save(self) -> None:
        told = {
            "calls": [asdict(call) for call in self.calls],
            "kinds": self.kinds,
            "optimized": self.optimized,
            "marked": self._stepped is not None,
            "losses": [loss.hex() for loss in self.losses],
            "lifted": self.lifted,
            "routings": self.routings,
            "renumbered": self.renumbered,
        }
        self.path.write_text(json.dumps(told))

    # ---- collectives -------------------------------------------------------------

    def log(
        self,
        operation: str,
        sent: Sequence[int],
        received: Sequence[int] = (),
        *,
        group: Any = None,
        kind: str = "",
        place: Place = Place(),
        direction: str | None = None,
    ) -> None:
        """Log a call that is made now."""
        if direction is None:
            direction = "backward" if self.inside else ""
        self.calls.append(
            Call(
                operation=operation,
                kind=kind or "world",
                ranks=dist.get_process_group_ranks(group or dist.group.WORLD),
                place=place,
                direction=direction,
                step=len(self.kinds),
                sent=list(sent),
                received=list(received),
                aside=self.aside,
            )
        )

    def all_to_all(
        self,
        output: torch.Tensor,
        rows: torch.Tensor,
        received: list[int],
        sent: list[int],
        *,
        group: Any = None,
        kind: str = "ep",
        place: Place,
        backward: bool = False,
        async_op: bool = False,
    ) -> Any:
        """Exchange rows; ``backward``: as a gradient."""
        inside = self.inside or torch._C._current_graph_task_id() != -1
        pass_ = "recompute" if inside else "forward"
        size = rows[0].numel() if len(rows) else output[0].numel() if len(output) else 0
        size *= rows.element_size()
        self.log(
            "all_to_all",
            [n * size for n in sent],
            [n * size for n in received],
            group=group,
            kind=kind,
            place=place,
            direction="backward" if backward else pass_,
        )
        with self.annotate(layer=place.layer, phase=place.phase, label=place.label):
            return dist.all_to_all_single(
                output, rows, received, sent, group=group, async_op=async_op
            )

    def all_reduce(
        self, values: torch.Tensor, *, group: Any = None, kind: str = "dp"
    ) -> None:
        self.log("all_reduce", [values.nbytes], group=group, kind=kind)
        dist.all_reduce(values, group=group)

    def send(self, values: torch.Tensor, peer: int, tag: int, place: Place) -> Any:
        self.log("send_recv", [values.nbytes], kind="pp", place=place)
        return dist.isend(values, peer, tag=tag)

    def receive(self, values: torch.Tensor, peer: int, tag: int, place: Place) -> None:
        self.log("send_recv", [values.nbytes], kind="pp", place=place)
        dist.recv(values, peer, tag=tag)
