"""Devices: the protocol, the registry, and a folder for each kind."""
