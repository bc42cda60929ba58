"""The process of a base station, and the terminals as it sees them."""
