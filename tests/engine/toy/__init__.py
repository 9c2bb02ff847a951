"""An experiment that trains nothing."""
