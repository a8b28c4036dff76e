"""Time calls on the host and on a GPU."""
