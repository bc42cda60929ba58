"""Choose settings on training rows only: folds, regularisation weights, fair tuning."""
