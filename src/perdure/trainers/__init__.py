"""The language trainers that a document names, `lm/ppo` and its kin, one file a trainer."""
