"""Providers of rented machines."""
