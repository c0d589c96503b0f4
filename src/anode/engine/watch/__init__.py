"""Whether a function only computes, and whether anything that it reads has changed."""
