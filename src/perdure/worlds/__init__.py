"""Worlds: pure JAX functions under `pure`, other libraries' environments under `adapters`, probes and tests for all."""
