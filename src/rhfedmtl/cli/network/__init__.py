"""Command line: networks of real nodes, one file for each thing to do with them."""
