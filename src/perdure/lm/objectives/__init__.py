"""What a language policy is trained towards: advantages, losses, aggregations and divergences, as pure functions."""
