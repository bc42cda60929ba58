"""Estimators in scikit-learn's manner: one model per task, learned under a budget, with a certificate."""
