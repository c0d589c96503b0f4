"""Models to take away: files that run without anode."""
