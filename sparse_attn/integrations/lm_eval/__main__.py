"""lm-eval's own command line, which has no other way to know a model class of ours."""

from lm_eval.__main__ import cli_evaluate

import sparse_attn.integrations.lm_eval  # noqa: F401 - registers it

if __name__ == "__main__":
    cli_evaluate()
