"""The demo: retrieval with sparse attention, then fine-tuning."""
