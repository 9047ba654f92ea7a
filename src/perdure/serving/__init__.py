"""Worlds as servers: the concierge world behind OpenEnv's protocol and behind REST sessions."""
