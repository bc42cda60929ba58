"""What every entry of a registry must hold, to be run over those of the library and over those of other packages.

``python -m rhfedmtl.testing conformance NAME`` runs it for one entry. A check is a function of a name whose docstring
says what must hold, and which raises where it does not; the test-suite runs the same functions.
"""
