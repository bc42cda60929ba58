"""Prices, budgets, what was spent, and the policies that decide how to spend it."""
