"""Products of parameters in which every value of the last takes its turn; the rest of the product is slow tests."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def in_turn(*axes: Iterable[Any]) -> list[Any]:
    """All combinations, of which one for each choice of the first axes is quick, with the next value of the last axis.

    For code where each parameter has its own place: every value is tried, and most pairs are.
    """
    listed = [list(enumerate(axis)) for axis in axes]
    found = []
    for combination in product(*listed):
        *firsts, last = (i for i, _ in combination)
        quick = last == sum(firsts) % len(listed[-1])
        values = (value for _, value in combination)
        found.append(pytest.param(*values, marks=() if quick else pytest.mark.slow))
    return found
