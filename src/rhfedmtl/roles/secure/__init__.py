"""Sums under masks: a terminal's side, a station's side, and the arithmetic of both."""
