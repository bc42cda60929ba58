"""The process of a base station: its terminals, the rounds and certificates it holds, and its link to the cloud."""
