"""Engines carry what the roles say to each other and decide nothing."""
