"""Engine of `glue` and `experiments`: command lines, folders, training loop, sweeps, reports."""
