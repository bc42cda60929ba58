"""Real base stations and terminals: processes that carry the roles' messages over gRPC with mutual TLS."""
