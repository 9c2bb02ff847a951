"""Sweeps: what to run (plan), where (pool, cluster), the results (records), and running it all."""
