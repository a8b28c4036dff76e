"""What did it cost? Sensor models, energy windows, and energy per call."""
