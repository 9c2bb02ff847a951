"""Attention: its shapes, who takes part, and the suite."""
