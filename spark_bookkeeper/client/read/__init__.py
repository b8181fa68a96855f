"""Reading a ledger: entries, following one that is written, splitting ranges among tasks."""
