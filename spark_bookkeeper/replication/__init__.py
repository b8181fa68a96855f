"""Making lost copies again: planning, copying and checking fragments.

Plans are values that a driver makes and any process can carry out; each step is checked again
when it is carried out, and repeating a finished step changes nothing.
"""
