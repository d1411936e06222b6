"""Entry point of ``python -m moetraffic``: run the command line."""

import sys

from moetraffic.cli import main

sys.exit(main())
