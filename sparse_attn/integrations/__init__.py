"""Patched models in the tools of others: each module is for one library, and imports it."""
