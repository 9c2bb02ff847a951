"""`python -m sparse_attn`; see `sparse_attn.commands`."""

from sparse_attn.commands import main

if __name__ == "__main__":
    main()
