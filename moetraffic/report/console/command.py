"""Commands with help of the terminal's width."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand


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
        super().__init__(*given, help=_joined(help), epilog=_joined(epilog), **more)


def _joined(text: str | None) -> str | None:
    return text and re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip())
