"""The mathematics: losses, kernels, relationships, objectives. No I/O, clock, logging or hidden randomness."""
