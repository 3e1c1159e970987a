"""Stores in memory, reliable and not: for simulation, property tests and the contract suites."""
