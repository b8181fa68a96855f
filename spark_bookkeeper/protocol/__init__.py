"""The protocol: values, arithmetic and state machines, and nothing else.

Nothing here reads a clock, draws a random number, starts a thread or touches a file. A machine
takes an event (an entry to add, an answer of a bookie, a lost compare-and-swap) and returns
commands. Its driver carries them out and reports the results as events. So every rule of data
safety can be tested as a value, in any order of events, without waiting.

``PROTOCOL.md`` in this folder lists the states and the named invariants.
"""
