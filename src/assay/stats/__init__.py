"""Statistics on arrays and plain numbers; nothing here reads files or starts processes."""
