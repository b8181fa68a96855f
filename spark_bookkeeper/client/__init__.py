"""Write, read and recover ledgers: carry out the decisions of ``protocol``.

Storage, metadata and the runtime (clock, dice, threads) are arguments, so that the same code runs
on real parts and in a seeded simulation.
"""
