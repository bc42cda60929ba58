"""Choosing settings on training rows alone: folds, regularisation weights, fair tuning."""
