"""Networks on one machine: provisioning, supervision, files for containers and services."""
