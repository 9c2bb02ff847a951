"""Two features at a time: what is patched, beside what else a user does to a model."""
