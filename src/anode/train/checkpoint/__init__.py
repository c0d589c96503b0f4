"""Checkpoints: the state of a training run on disk, and resuming from it."""
