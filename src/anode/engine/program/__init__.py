"""Fields as programs: short lists of operations on the features of a point, and their derivatives."""
