"""The policy that plans from the measured progress of the run."""
