"""True gate probabilities of a run, in a file beside its trace.

An NPZ file of three arrays: ``iterations`` ``[n]`` int64, ascending; ``layers`` ``[L]``
int64; ``shares`` ``[n, L, E]`` or, where world ranks differ, ``[n, L, R, E]`` float64:
the expected share of each expert in the token copies of a rank, with the sum 1.
Synthetic traces have them; a capture records choices, from which they do not follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import TraceError

from .hdf5.durable import validate_output, write_errors, write_whole


@dataclass(frozen=True, kw_only=True, eq=False)
class GateProbabilities:
    """Expected shares of the experts in the token copies of a rank.

    Raises
    ------
    TraceError
        If shapes do not fit, or shares are negative or do not sum to 1.
    """

    iterations: Int64  # [n], ascending
    layers: Int64  # [L]
    shares: Float64  # [n, L, E], or [n, L, R, E] of world ranks

    def __post_init__(self) -> None:
        size = (len(self.iterations), len(self.layers))
        whole = self.shares.ndim in (3, 4) and self.shares.shape[:2] == size
        if not whole or (np.diff(self.iterations) <= 0).any():
            raise TraceError(
                f"gate probabilities of {size[0]} ascending iterations and {size[1]} "
                f"layers are [n, L, E] or [n, L, R, E], not {self.shares.shape}: "
                "correct the arrays"
            )
        sums = self.shares.sum(axis=-1)
        if not (self.shares >= 0).all() or not np.allclose(sums, 1, atol=1e-6):
            raise TraceError(
                "gate probabilities are 0 or more and sum to 1 over the experts, but "
                f"sums are {sums.min():.4g} to {sums.max():.4g}: correct the arrays"
            )

    def of(
        self, layer: int, iterations: Int64, ranks: Sequence[int], experts: int
    ) -> Float64:
        """Return the shares of a layer, ``[m, W or 1, E]``.

        Raises
        ------
        TraceError
            If they are unavailable for it.
        """
        at = np.searchsorted(self.iterations, iterations)
        known = np.isin(iterations, self.iterations)
        every = self.shares if self.shares.ndim == 4 else self.shares[:, :, None]
        lacks = ""
        if not known.all():
            lacks = f"iteration {iterations[~known][0]}"
        elif layer not in self.layers:
            lacks = f"layer {layer}"
        elif every.shape[-1] != experts:
            lacks = f"{experts} experts, but for {every.shape[-1]}"
        elif 1 < every.shape[2] <= max(ranks):
            lacks = f"rank {max(ranks)}"
        if lacks:
            raise TraceError(
                f"the gate probabilities are not for {lacks}: give those of this trace"
            )
        mine: Float64 = every[at, int(np.flatnonzero(self.layers == layer)[0])]
        return mine if mine.shape[1] == 1 else mine[:, list(ranks)]

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write them to an NPZ file.

        Raises
        ------
        TraceError
            If the file exists and ``force`` is not given, or it cannot be written.
        """
        path, data = Path(path), BytesIO()
        here = "give force=True"
        validate_output(path, force=force, error=TraceError, overwrite=here)
        np.savez_compressed(data, **vars(self))
        with write_errors(path, error=TraceError):
            write_whole(path, data.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> GateProbabilities:
        """Read them from an NPZ file.

        Raises
        ------
        TraceError
            If the file cannot be read, or has other arrays.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(
                    iterations=arrays["iterations"].astype(np.int64),
                    layers=arrays["layers"].astype(np.int64),
                    shares=arrays["shares"].astype(np.float64),
                )
        except (OSError, ValueError, KeyError, BadZipFile, AttributeError) as error:
            why = "it is no NPZ file of numbers"  # numpy would advise to unpickle it
            if isinstance(error, OSError) and error.strerror:
                why = error.strerror
            elif isinstance(error, KeyError):
                why = "an array is missing"
            raise TraceError(
                f"gate probabilities are an NPZ file with iterations, layers and "
                f"shares, but {path} cannot be read so ({why}): give what generate "
                "--probabilities writes"
            ) from None
