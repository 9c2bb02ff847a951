"""The GLUE pipeline: fine-tune a Transformer with any mapping in its attention, and measure it."""
