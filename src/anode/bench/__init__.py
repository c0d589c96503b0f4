"""Speed side by side with other libraries: what ``anode bench speed`` does."""
