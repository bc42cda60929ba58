"""Policies choose the local steps and station rounds of the next server iteration."""
