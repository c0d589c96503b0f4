"""Augmented neural ODEs for people who use scikit-learn."""
