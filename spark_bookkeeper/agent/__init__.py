"""What serves a bookie and looks after it: its agent, its cookie, and the upkeep of its storage."""
