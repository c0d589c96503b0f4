"""Datasets to try models on."""
