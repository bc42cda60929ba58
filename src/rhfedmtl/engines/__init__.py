"""Engines carry the messages of the roles, and decide nothing."""
