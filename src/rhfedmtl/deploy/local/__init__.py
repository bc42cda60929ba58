"""Networks on a single machine: provisioning, supervision, files for containers and services."""
