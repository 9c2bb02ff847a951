"""The demo: its texts, and what attention may drop of them."""
