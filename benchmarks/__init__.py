"""Time and peak memory of attention and of whole training steps, beside other libraries."""

import os

# before torch: silences the profiler that measures memory on the CPU
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
