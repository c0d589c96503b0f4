"""The state of a training run on disk, and going on from it."""
