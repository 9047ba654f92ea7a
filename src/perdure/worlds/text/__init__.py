"""Worlds of words: a question is asked in text, and an exact verifier judges the answer."""
