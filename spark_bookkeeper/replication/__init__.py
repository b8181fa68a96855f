"""Rereplication: plan, copy and check fragments.

A driver makes plans; they are values that any process can carry out. Each step is checked again
when it is carried out, and repeating a finished step changes nothing.
"""
