"""Learning methods: the work of a terminal, the merge at a base station, the coupling at the cloud."""
