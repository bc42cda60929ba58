"""The process of a terminal, and the commands for its owner (`rhfedmtl-terminal`)."""
