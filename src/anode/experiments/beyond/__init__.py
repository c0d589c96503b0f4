"""Beyond the paper: what it leaves open, carried out and judged as its own claims are."""
