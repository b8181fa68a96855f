"""The service of a bookie: its agent, its cookie, and the upkeep of its storage."""
