"""Neural ODE models on the numerical core."""
