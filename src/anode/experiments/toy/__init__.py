"""The toy half of the paper."""
