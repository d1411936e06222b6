"""Match backward and recomputed all-to-alls with their forward calls.

Links recorded by autograd take precedence.  Otherwise gradient calls are assumed in the
reverse order of their forward calls, with sent and received bytes swapped.  Under the
1F1B schedule several forward passes are pending; the oldest is matched first.
"""

from __future__ import annotations

from .phases import Experts, Forward, ForwardCall, Pass, Unit
from .programs import BETWEEN, EXCHANGE, ROUTER, CallSequence

NEAR = 12  # search depth: calls may lack a gradient, or have it out of order
GRADIENT = {"dispatch": "dispatch_grad", "combine": "combine_grad", "": ""}


class Reading:
    """Inferred phases, labels and layers of the calls in one call sequence."""

    def __init__(self, program: CallSequence, experts: Experts) -> None:
        self.program = program
        self.calls: dict[int, ForwardCall] = {}
        self.interleaved = False  # gradients of one pass occur within another
        self.forward = Forward(program, experts)
        self._again = Forward(program, experts)
        self._experts = experts
        self._active: Pass | None = None
        # pairs of a gradient call and its forward call
        self._gradients: list[tuple[ForwardCall, ForwardCall]] = []
        self._read()
        for call, of in self._gradients:
            call.phase = GRADIENT.get(of.phase, "")
            call.label, call.unit = of.label, of.unit
        self.passes = [p for p in self.forward.passes if p.units]  # with MoE layers
        self.units = {u for p in self.passes for u in p.units}

    def _read(self) -> None:
        last = ""  # direction of the previous all-to-all of the pass
        recomputed = False  # a recomputed pass waits for its forward pass
        for at, token in enumerate(self.program.word):
            if token.kind == EXCHANGE and not token.direction:
                # of an unknown direction: neither a forward nor a gradient call
                self.calls[at] = ForwardCall(at, token.phase, token.label)
                continue
            # counts have no gradient: they are recomputed
            again = token.direction == "recompute" or (
                token.direction == "backward" and token.counts
            )
            if token.kind == BETWEEN:
                self.forward.pause()
                self._leave()
                last = ""
            elif token.kind == ROUTER:
                ours = token.direction == "forward"
                (self.forward if ours else self._again).routed = token.layer
            elif again or token.direction == "backward":
                if last == "forward":
                    self._pause()
                last = "recompute" if again else "backward"
                if again:
                    self.calls[at] = self._again.read(at)
                elif recomputed:
                    self._settle()
                recomputed = again
                if not again:
                    self._gradient(at)
            else:
                if last not in ("", "forward"):
                    self._leave()
                self.calls[at] = self.forward.read(at)
                last = "forward"
        if recomputed:
            self._settle()
        self.forward.finish()

    def _pause(self) -> None:
        """Begin a backward pass: end the forward pass that precedes it."""
        self.interleaved |= bool(self.forward.open)
        self.forward.pause()

    def _leave(self) -> None:
        """Begin another forward pass; pending calls of the last one lack a gradient."""
        active = self._active
        if active is None:
            return
        first = active.units[0] if active.units else None
        if all(c.unit in (first, None) for c in active.stack):
            active.stack.clear()
        self._active = None

    def _gradient(self, at: int) -> None:
        token = self.program.word[at]
        call = self.calls[at] = ForwardCall(at, token.phase, token.label)
        if token.phase or token.label:
            return
        of = self._forward_of(at)
        if of is not None:
            self._gradients.append((call, of))

    def _forward_of(self, at: int) -> ForwardCall | None:
        partner = int(self.program.partner[at])
        if partner >= 0:
            found = self.calls.get(partner)
            for one in self.forward.passes:
                if found in one.stack:
                    one.stack.remove(found)
                    self._active = one
            if found is not None and found.unit is not None and found.unit.again:
                self._take_out(found)
            return found
        waiting = [p for p in self.forward.passes if p.stack and p is not self._active]
        for one in [self._active, *waiting] if self._active else waiting:
            found = self._top_match(one, at)
            if found is not None:
                one.stack.remove(found)
                self._active = one
                return found
        return None

    def _take_out(self, again: ForwardCall) -> None:
        """Remove the original of a recomputed call from those awaiting a gradient."""
        unit = again.unit.again if again.unit is not None else None
        for one in self.forward.passes:
            for call in one.stack:
                if call.unit is unit and call.phase == again.phase:
                    one.stack.remove(call)
                    self._active = one
                    return

    def _top_match(self, one: Pass, at: int) -> ForwardCall | None:
        word, program = self.program.word, self.program
        for call in reversed(one.stack[-NEAR:]):
            theirs, mine = word[call.at], word[at]
            if theirs.group != mine.group or not program.turned(call.at, at):
                continue
            if theirs.dtype == mine.dtype or call.phase:
                return call
        return None

    def _settle(self) -> None:
        """Assign recomputed layers to the layers whose gradients are due next."""
        units = [u for p in self._again.passes for u in p.units]
        of_pass = self._due(units)
        if of_pass is not None:
            due = {c.unit for c in of_pass.stack if c.phase == "combine"}
            left = [u for u in of_pass.units if u in due]
            for unit, first in zip(reversed(units), reversed(left), strict=False):
                unit.again = first
        # a combine whose result is not needed is not recomputed
        self._again.open = []
        self._again.finish()
        self._again = Forward(self.program, self._experts)

    def _due(self, units: list[Unit]) -> Pass | None:
        """Return the forward pass that the given recomputed layers belong to."""
        active = self._active
        if active is not None and any(c.phase == "combine" for c in active.stack):
            return active
        waiting = [
            p for p in self.forward.passes if p.stack and p.units and p is not active
        ]
        for one in waiting:
            last = one.units[-1].dispatch
            if units and self.program.equal(last, units[-1].dispatch):
                return one
        return waiting[0] if waiting else None
