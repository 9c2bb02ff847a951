"""lm-eval's command line with our model class, which it cannot register in another way."""

from lm_eval.__main__ import cli_evaluate

import sparse_attn.integrations.lm_eval  # noqa: F401 - registers it

if __name__ == "__main__":
    cli_evaluate()
