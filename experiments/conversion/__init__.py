"""Ways to convert a pretrained sentence encoder to a sparse mapping, with equal budgets."""
