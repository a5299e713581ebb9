"""Servers around engines that are libraries: each file is started with the Python of its own environment, and imports only the
standard library and that engine."""
