"""Augmented neural ODEs for people who use scikit-learn."""

from anode.extras import needs

needs("anode.estimators", "sklearn")
