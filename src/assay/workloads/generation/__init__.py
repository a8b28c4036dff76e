"""LLM inference: in this process, or by a server with an OpenAI-compatible API."""
