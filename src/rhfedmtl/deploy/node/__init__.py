"""What every node of a network has: configuration, credentials, links, durable state, logs."""
