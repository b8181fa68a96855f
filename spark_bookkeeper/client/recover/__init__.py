"""What is made good after a failure: the end of a ledger, and copies of its entries."""
