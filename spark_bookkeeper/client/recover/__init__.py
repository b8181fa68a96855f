"""Repair after a failure: the end of a ledger, and copies of its entries."""
