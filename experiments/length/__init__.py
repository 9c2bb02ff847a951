"""Length generalisation: attention functions trained on short texts and tested on long ones."""
