"""The same code on a seeded scheduler: every run is one value, its seed.

Actors (a writer, recoverers, re-replicators) run the library's own drivers against the memory
twins. Every operation on storage or metadata is a point where the scheduler may let somebody
else go on, let time pass, or let something fail. The same seed gives the same history.

    scheduler   the world: actors, their tasks, the clock, who goes on
    choices     who decides: a seed, or the enumeration of every small case
    runtime     client/runtime.Runtime in that world
    faults      what goes wrong: drawn from the seed, at the doors of the twins
    damage      how files of a bookie are damaged, each kind in each way
    history     what happened, in order, with a digest
    evidence    what lies on the disks and in the metadata, read with plain pyarrow
    checkers    one function for each named invariant
    lifetime    one ledger from its creation to its end, under a seed
    campaign    many lifetimes, in several processes, and what they met

Repeat a failure with ``python -m tests.simulator --seed N --verbose``;
run many with ``--lifetimes N --jobs 2``.

Source: SLOT-LOG, "Named invariants" and "How the rules were checked".
"""
