"""What comes before reinforcement learning: supervised tuning, a trained critic, a trained context encoder."""
