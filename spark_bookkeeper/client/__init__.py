"""Writing, reading and recovering ledgers: carries out what ``protocol`` decides.

Storage, metadata and the runtime (clock, dice, threads) are handed in, so that the same code
runs on real parts and in a seeded simulation.
"""
