"""Tokens from language models: in a process of ours, or from a server that speaks OpenAI's protocol."""
