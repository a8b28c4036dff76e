"""A client of OpenAI-compatible servers: probe, steady closed-loop load, and token timestamps."""
