"""The wire format: protobuf messages, and the roles' messages to and from them."""
