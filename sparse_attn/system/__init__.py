"""Files, folders, the hub and the machine."""
