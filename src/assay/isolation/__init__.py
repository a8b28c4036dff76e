"""Isolation levels, disjoint core placement, binding, and the evidence that a level held."""
