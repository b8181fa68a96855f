"""The clock, randomness and threads of all layers above, and small tools made of them."""
