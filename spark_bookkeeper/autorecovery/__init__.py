"""A cluster that keeps itself whole: the auditor publishes what is missing, workers make it again.

Any number of processes run both. One of them is elected auditor; all of them are workers. What
they tell each other is in the metadata store, in BookKeeper's own tree.

Source: Bookie Ledger Recovery, "AutoRecovery Internals".
"""
