"""Plots of trainings, flows and feature spaces: arrays in, matplotlib figures out. Nothing here trains."""
