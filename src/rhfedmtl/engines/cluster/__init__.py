"""Engines whose stations are shared out over processes and machines."""
