"""Bridges between perdure's worlds and other libraries' environments, both ways."""
