"""Commands with help of the terminal's width, which refuse options without effect."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand

from .idle_options import refuse_lone


class Command(TyperCommand):
    """Command that joins the lines of each paragraph of its help and epilog.

    Typer does so in the first paragraph only; others keep their line breaks.  Options
    without what they need are refused: see :data:`.options.NEEDED`.
    """

    def __init__(
        self,
        *given: Any,
        help: str | None = None,
        epilog: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*given, help=_joined(help), epilog=_joined(epilog), **more)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the verb, unless an option has no effect beside the others."""
        refuse_lone(ctx)
        return super().invoke(ctx)


def _joined(text: str | None) -> str | None:
    return text and re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip())
