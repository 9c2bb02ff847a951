"""Many runs at once: which (plan), where they run (spread), what they gave (records), run."""
