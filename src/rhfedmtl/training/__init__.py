"""Runs: round zero, server iterations, accounting, faults, checkpoints and results."""
