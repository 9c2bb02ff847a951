"""Patched models in the tools of others: a module for each library, which imports it."""
