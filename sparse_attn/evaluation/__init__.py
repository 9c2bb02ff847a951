"""Tasks that models are evaluated on: data, labels and metrics."""
