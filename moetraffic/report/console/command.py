"""Commands whose help text is wrapped to the width of the terminal."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

_LINE_BREAK = re.compile(r"(?<!\n)\n(?!\n)")


class Command(TyperCommand):
    """Command that joins the lines of each paragraph of its help and epilog.

    Typer does so in the first paragraph only; others keep their line breaks.
    """

    def __init__(
        self,
        *given: Any,
        help: str | None = None,
        epilog: str | None = None,
        **more: Any,
    ) -> None:
        texts = (text and _LINE_BREAK.sub(" ", text.strip()) for text in (help, epilog))
        super().__init__(
            *given, **dict(zip(("help", "epilog"), texts, strict=True)), **more
        )
