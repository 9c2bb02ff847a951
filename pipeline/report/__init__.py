"""What reports are made of: spreads, tables, numbers as text, the looks of plots."""
