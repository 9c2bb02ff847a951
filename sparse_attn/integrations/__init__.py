"""Patched models in other tools: one module per library, which imports it."""
