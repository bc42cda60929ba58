"""Commands for networks of real nodes; each module has the commands of one task."""
