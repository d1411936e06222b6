"""Arrays of configurations: each element is as the configuration alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moetraffic.errors import LayoutError
from moetraffic.patterns import Layout, preset
from moetraffic.timemodel import Estimate, System, estimate

MOE = preset("deepseek-v2-lite").model
SYSTEM = System(peak_flops=100e12, utilization=0.5, bandwidth=10e9)
LAYOUT: dict[str, Any] = {"dp": 8, "ep": 8, "k": 6, "global_batch": 16}


def made(*, strict: bool = True, **named: Any) -> Estimate:
    return estimate(Layout(model=MOE, **{**LAYOUT, **named}), SYSTEM, strict=strict)


@pytest.mark.parametrize("field", ["dtype", "dispatch_dtype", "gradient_dtype"])
def test_bytes_of_elements_may_be_arrays(field: str) -> None:
    found = made(**{field: np.array([1.0, 2.0, 4.0])})
    assert found.config.shape == found.iteration.shape == found.sound.shape == (3,)
    assert found.bandwidth(["ep"]).shape == found.tokens_s.shape == (3,)
    for at, size in enumerate((1, 2, 4)):
        alone = made(**{field: size})
        assert found.iteration[at] == alone.iteration
        for kind, sent in alone.wire.items():
            assert found.wire[kind][at] == sent
    with pytest.raises(LayoutError, match="broadcast together"):
        Layout(model=MOE, **{**LAYOUT, "tp": [1, 2], field: [1.0, 2.0, 4.0]})


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("axis", ["tp", "cp", "dp", "pp", "ep"])
def test_an_element_that_cannot_exist_is_nan_and_changes_no_other(
    axis: str, zero: int
) -> None:
    sizes = {"tp": 1, "cp": 1, "dp": 8, "pp": 1, "ep": 8}
    named: dict[str, Any] = {"zero": zero, "accumulation": 2, "global_batch": None}
    found = made(**{**named, axis: np.array([0, sizes[axis]])}, strict=False)
    assert found.sound.tolist() == [False, True]
    assert np.isnan(found.iteration).tolist() == [True, False]
    assert found.iteration[1] == made(**named).iteration
