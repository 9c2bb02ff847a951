"""Data sets of rows with any number of labels: synthetic, images, texts."""
