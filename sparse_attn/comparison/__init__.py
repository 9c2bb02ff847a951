"""One pretrained model under several mappings, nothing trained."""
