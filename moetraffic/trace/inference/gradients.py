"""Match backward and recomputed all-to-alls with their forward calls.

Links recorded by autograd take precedence.  Otherwise gradient calls are assumed in the
reverse order of their forward calls, with sent and received bytes swapped.  Under the
1F1B schedule several forward passes are pending; the oldest is matched first.

Layers, and what bytes do not show, rest on the order of the calls.  Its premises are
checked: one thread makes the calls, a backward pass runs from the last layer of a
forward pass to the first, and no forward call comes in between.  A program in which one
of them fails is ``interleaved``, or has no ``order``.
"""

from __future__ import annotations

from .phases import UNREACHED, Experts, Forward, ForwardCall, Pass, Unit
from .programs import BETWEEN, EXCHANGE, ROUTER, CallSequence

NEAR = 12  # search depth: calls may lack a gradient, or have it out of order
GRADIENT = {"dispatch": "dispatch_grad", "combine": "combine_grad", "": ""}


class Reading:
    """Inferred phases, labels and layers of the calls in one call sequence."""

    def __init__(self, program: CallSequence, experts: Experts) -> None:
        self.program = program
        self.calls: dict[int, ForwardCall] = {}
        self.interleaved = False  # passes of several micro-batches or chunks alternate
        self.forward = Forward(program, experts)
        self._again = Forward(program, experts)
        self._experts = experts
        self._active: Pass | None = None
        # pairs of a gradient call and its forward call
        self._gradients: list[tuple[ForwardCall, ForwardCall]] = []
        if program.order:
            self._read()
        self.interleaved |= self.forward.overlaps
        if self.interleaved or self._lacks_gradients():
            self._discard_guesses()
        for call, of in self._gradients:
            call.phase = GRADIENT.get(of.phase, "")
            call.label, call.unit = of.label, of.unit
        self.passes = [p for p in self.forward.passes if p.units]  # with MoE layers
        self.units = [u for p in self.passes for u in p.units]

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

    def _lacks_gradients(self) -> bool:
        """Return whether a pass lacks gradients other than its first dispatch's."""
        for one in self.forward.passes:
            if one.reached == UNREACHED or not one.units:
                continue
            first = one.units[0]
            for call in one.stack:
                if call.unit and (call.unit is not first or call.phase == "combine"):
                    return True
        return False

    def _discard_guesses(self) -> None:
        """Discard what the order alone implies of calls that send equal parts."""
        even, partner = self.program.even, self.program.partner
        for call in self.calls.values():
            if even[call.at] and not self.program.word[call.at].counts:
                call.phase = call.label = ""
                call.unit = None
        self._gradients = [
            (call, of)
            for call, of in self._gradients
            if partner[call.at] >= 0 or not even[call.at]
        ]

    def _pause(self) -> None:
        """Begin a backward pass: end the forward pass that precedes it."""
        self.interleaved |= bool(self.forward.open)
        self.forward.pause()

    def _leave(self) -> None:
        """Begin another forward pass; pending calls of the last one lack a gradient."""
        active = self._active
        if active is None:
            return
        active.left = True
        first = active.units[0] if active.units else None
        if all(
            c.unit is None or (c.unit is first and c.phase != "combine")
            for c in active.stack
        ):
            active.stack.clear()
        self._active = None

    def _follow(self, one: Pass, of: ForwardCall) -> None:
        """Continue the backward pass of a forward pass; check the premises of order."""
        self._active = one
        self.interleaved |= one.left
        unit = None if of.unit is None else of.unit.again or of.unit
        if unit in one.units:
            at = one.units.index(unit)
            self.interleaved |= at > one.reached
            one.reached = at

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
            if not self.program.turned(partner, at):
                return None  # not the gradient of what was sent
            for one in self.forward.passes:
                if found is not None and found in one.calls:
                    if found in one.stack:
                        one.stack.remove(found)
                    self._follow(one, found)
            if found is not None and found.unit is not None and found.unit.again:
                self._take_out(found)
            return found
        waiting = [p for p in self.forward.passes if p.stack and p is not self._active]
        for one in [self._active, *waiting] if self._active else waiting:
            found = self._top_match(one, at)
            if found is not None:
                one.stack.remove(found)
                self._follow(one, found)
                return found
        return None

    def _take_out(self, again: ForwardCall) -> None:
        """Remove the original of a recomputed call from those awaiting a gradient."""
        unit = again.unit.again if again.unit is not None else None
        for one in self.forward.passes:
            for call in one.stack:
                if call.unit is unit and call.phase == again.phase:
                    one.stack.remove(call)
                    self._follow(one, call)
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
                if self.program.equal(first.dispatch, unit.dispatch):
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
