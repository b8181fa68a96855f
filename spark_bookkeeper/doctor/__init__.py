"""Diagnosis of a cluster: problems, and their remedies. It changes nothing."""
