"""A sweep over GLUE: what it is (config), its runs (plan), from config to records (run)."""
