"""Runs on disk: what was asked, what came out, and all that is needed to repeat it."""
