"""Feature maps: what a terminal computes from its scaled rows before it learns a linear model.

A convex problem stays convex behind a map: the model is linear in the mapped columns. `registry` names the maps.
"""
