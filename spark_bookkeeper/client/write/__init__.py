"""Writing a ledger: adds, channels that carry them to bookies, ensemble changes, bulk appends."""
