"""Export models to files that run without anode."""
