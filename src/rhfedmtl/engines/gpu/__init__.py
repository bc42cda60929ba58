"""The engine whose rows and duals stay on a graphics card."""
