"""Learning methods: what a terminal computes, how a base station merges, how the cloud couples."""
