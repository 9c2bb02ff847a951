"""What `glue` and `experiments` share: command lines, folders, training loop, sweeps, reports."""
