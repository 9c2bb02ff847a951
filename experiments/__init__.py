"""Experiments of the papers on output layers, one package each."""
