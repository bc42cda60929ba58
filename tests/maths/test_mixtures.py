"""A model on the line through two others is found again by its share, to the bit, and no other model is."""

from __future__ import annotations

import numpy as np
import pytest

from rhfedmtl.maths.mixtures import SHARE_STEP, between, rounded_share, share_between

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("apart", [1.0, 1e-9])
@pytest.mark.parametrize("share", [0.0, 1.0, SHARE_STEP, 0.3, -0.7, 1.9])
def test_a_share_is_found_again(share: float, apart: float) -> None:
    """Between the two and beyond them, also where they nearly agree."""
    first = RNG.normal(size=(3, 1, 40))
    models = np.stack([first, first + apart * RNG.normal(size=first.shape)])
    model = between(rounded_share(share), models)
    found = share_between(model, models)
    assert found is not None
    np.testing.assert_array_equal(between(found, models), model)
    if apart == 1.0:
        assert found == rounded_share(share)
        for b in range(3):  # whoever knows one task alone finds the same
            assert share_between(model[b], models[:, b]) == found


def test_what_is_no_mixture_has_no_share() -> None:
    """A last digit that differs, a share between two grains, one model twice, another shape, numbers too large."""
    models = RNG.normal(size=(2, 1, 9))
    model = between(0.25, models)
    model[0, 4] = np.nextafter(model[0, 4], 9.0)
    for wrong in (model, between(SHARE_STEP / 3.0, models), model[:, :5], 1e4 * model):
        assert share_between(wrong, models) is None
    assert share_between(models[0] + 1.0, models[[0, 0]]) is None
    assert share_between(models[0], models[:1]) is None
    assert share_between(models[0], 1e200 * models) is None
