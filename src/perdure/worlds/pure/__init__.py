"""Classic-control worlds as pure functions of JAX arrays, equal to Gymnasium's step for step."""
