"""Differences from softmax of every study in results/: entries, their figure and their page."""
