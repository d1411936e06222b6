"""Types of arrays, by their elements; the shapes are in the docstrings."""

import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
Complex128 = npt.NDArray[np.complex128]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Floating = npt.NDArray[np.floating]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Int8 = npt.NDArray[np.int8]
Integer = npt.NDArray[np.integer]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
UInt8 = npt.NDArray[np.uint8]
