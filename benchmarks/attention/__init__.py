"""Attention: cases, contestants and the suite."""
