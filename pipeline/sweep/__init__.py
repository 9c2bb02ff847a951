"""Many runs at once: which (plan), where they run (pool), what they gave (records), run."""
