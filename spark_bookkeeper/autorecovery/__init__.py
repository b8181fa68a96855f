"""Autorecovery: the auditor publishes missing replicas, and workers make them again.

Any number of processes run both roles. One of them is elected auditor; all of them are workers.
They communicate through the metadata store, in BookKeeper's own tree.

Source: Bookie Ledger Recovery, "AutoRecovery Internals".
"""
