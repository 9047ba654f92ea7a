"""perdure: train agents in worlds that keep changing; measure what they learned and forgot."""
