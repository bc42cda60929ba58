"""Predict the work a budget pays for, or the budget a target needs, before a run spends anything."""
