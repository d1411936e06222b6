"""How many operations are prepared before a timed pass, and the memory that they take.

Without torch: a dry run announces the memory and starts no rank.
"""

PREPARED = 1 << 16
"""Operations prepared before timing; longer programs are prepared in blocks."""

BLOCK = 4096

LAUNCH_BYTES = 1900
"""Memory of a prepared collective: callable, options, and two views of buffers.

Of gloo, measured with CPython 3.11 and torch 2.13; that of an all-to-all has
:data:`SIZE_BYTES` for each number of bytes, that of a gather or scatter
:data:`VIEW_BYTES` for each member's part.
"""

SIZE_BYTES = 40
VIEW_BYTES = 450
