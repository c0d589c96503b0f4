"""The compiled engine: which fields it can see through, and how it is called."""
