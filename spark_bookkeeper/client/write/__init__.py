"""Writing a ledger: adds, the lanes that carry them to bookies, ensemble changes, bulk appends."""
