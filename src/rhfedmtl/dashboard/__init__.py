"""A live page: runs as they go, networks as they stand, and what a budget would buy. It looks; it never acts."""
