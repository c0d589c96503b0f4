"""The compiled engine: how right-hand sides are traced and compiled, and how the engine is called."""
