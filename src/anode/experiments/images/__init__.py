"""The image half of the paper."""
