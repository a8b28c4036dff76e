"""What the GPU ran, kernel by kernel: from a profiler's record to rows, with sensors and counters beside them."""
