"""Check whether a function has side effects, and whether anything that it reads has changed."""
