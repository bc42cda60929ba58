"""One run: round zero, server iterations, accounting, faults, checkpoints, and what it leaves behind."""
