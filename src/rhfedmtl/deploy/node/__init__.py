"""Parts that every node of a network uses: configuration, credentials, links, durable state, logs.

The cloud, the stations and the terminals build on this package. It knows nothing about learning: it moves bytes, stores
bytes, and decides who may connect.
"""
