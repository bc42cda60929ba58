"""scikit-learn estimators: one linear model per task, trained within a budget, with a certificate."""
