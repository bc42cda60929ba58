"""Settings that all tests share."""

from __future__ import annotations

import hypothesis

# The same examples in every run; a deadline would assert on wall-clock time.
hypothesis.settings.register_profile("rhfedmtl", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("rhfedmtl")
