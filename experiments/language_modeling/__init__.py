"""Word and character language models with any output mapping: train, sweep, measure, report."""
