"""The clock, chance and threads of everything above, and small things made of them."""
