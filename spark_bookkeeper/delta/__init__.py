"""Delta tables: where the rows of closed ledgers live on."""
