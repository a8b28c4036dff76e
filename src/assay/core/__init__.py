"""Values, errors, units, leases and durable files that every other package uses."""
