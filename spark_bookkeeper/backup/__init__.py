"""Ledgers and logs copied to a directory, and put from there into a cluster."""
