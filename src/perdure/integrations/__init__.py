"""Bridges to training libraries of others, each of them optional and loaded only where it is asked for."""
