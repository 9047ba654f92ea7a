"""How language policies are trained: trajectories, sampler, objectives, policy, learner (torch)."""
