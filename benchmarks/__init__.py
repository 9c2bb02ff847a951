"""Time and peak memory of attention and of whole training steps, beside other libraries."""

import os

# the profiler that counts memory on the CPU reports each of its starts, unless told before torch
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
