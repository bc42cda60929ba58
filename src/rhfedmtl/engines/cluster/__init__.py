"""Engines that distribute the stations over processes and machines."""
