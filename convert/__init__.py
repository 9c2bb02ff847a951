"""A pretrained model, converted from softmax to another mapping, and what that cost."""
