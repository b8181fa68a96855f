"""Delta tables that keep the rows of closed ledgers."""
