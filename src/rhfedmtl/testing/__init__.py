"""Checks that every entry of a registry must pass, in this library and in plugins.

``python -m rhfedmtl.testing conformance NAME`` runs the checks of an entry, and the test suite runs the same functions.
A check is a function of a name. Its docstring states the requirement, which the command prints; the function raises an
exception if the entry breaks it.
"""
