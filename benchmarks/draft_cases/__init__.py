"""Drafts of contracts held against the functions that they were drafted from."""
