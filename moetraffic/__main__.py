"""Entry point of ``python -m moetraffic``: run the command line."""

from __future__ import annotations

import sys

from moetraffic.cli import main

sys.exit(main())
