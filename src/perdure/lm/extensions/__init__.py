"""Parts that any language learner takes in any mix: components, each of which builds a `lm.hooks.Hooks`."""
