"""Watts: what each GPU did in each case, kernel by kernel, and what that says of the GPUs."""
