"""Ways to convert a pretrained sentence encoder from softmax to a sparse mapping, one budget."""
