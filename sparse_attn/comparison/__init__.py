"""Comparison of several mappings in one pretrained model, without training."""
