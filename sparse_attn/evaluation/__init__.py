"""What a model is measured on: tasks, their data, labels and metrics."""
