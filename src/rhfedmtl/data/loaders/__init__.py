"""Loaders: one file for each data set, and for users' own tables."""
