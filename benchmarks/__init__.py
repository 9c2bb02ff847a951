"""Time and peak memory of attention and training steps, compared with other libraries."""

import os

# before torch: silences the profiler that measures memory on the CPU
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
