"""A concierge's errands with vendors whose contracts change while the errand is run."""
