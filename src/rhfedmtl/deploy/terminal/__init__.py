"""The process of a terminal."""
