"""The policy that plans from what the run itself has shown."""
