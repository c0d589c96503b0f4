"""Translate a function to a program: record its tensor operations once, and translate them."""
