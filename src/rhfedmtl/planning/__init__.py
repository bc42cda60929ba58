"""What a budget would buy, and what budget a target needs, before anything is spent."""
