"""Backups: ledgers and logs are copied to a directory, and restored into a cluster."""
