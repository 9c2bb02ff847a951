"""The demo: a small entailment set that this repository makes itself."""
