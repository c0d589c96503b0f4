"""Numerics alone: tensors in, a Solution out; knows no network."""
