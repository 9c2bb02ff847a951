"""Images and labels, from the hub or a folder, and their splits."""

import numpy as np

# pixels [N, channels, height, width] and labels [N], uint8
Arrays = tuple[np.ndarray, np.ndarray]
