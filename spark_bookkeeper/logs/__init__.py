"""Logs made of ledgers: one name, one writer at a time, ledgers in a fixed order.

Source: The BookKeeper protocol, "Ledgers to logs".
"""
