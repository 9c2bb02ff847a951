"""Building blocks of reports: statistics, tables, number formats, plots, pages."""
