"""Prices, budgets, the cost of events, and the ledger that keeps spending within the budget."""
