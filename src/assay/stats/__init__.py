"""How sure are we? Pure functions on arrays."""
