"""A seeded simulation of many processes on one warehouse, with an independent checker."""
