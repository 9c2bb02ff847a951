"""Many runs at once: which (config, plan), where they run (spread), what they gave (records)."""
