"""What do we speak? Values, errors, units, leases and durable files."""
