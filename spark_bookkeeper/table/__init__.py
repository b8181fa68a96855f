"""The rows of a Delta table as entries again: the bookie that a released ledger is read from."""
