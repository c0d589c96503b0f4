"""Beyond the paper: studies of what it leaves open, judged like its own claims."""
