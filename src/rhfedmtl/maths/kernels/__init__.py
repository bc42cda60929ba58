"""The work of a round on arrays: what it takes and returns, in compiled loops and in NumPy."""
