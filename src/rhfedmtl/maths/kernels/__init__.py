"""Kernels: the work of a round on plain arrays, in compiled loops or in NumPy."""
