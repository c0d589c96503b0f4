"""Augmented neural ODEs as scikit-learn estimators."""

from anode.extras import needs

needs("anode.estimators", "sklearn")
