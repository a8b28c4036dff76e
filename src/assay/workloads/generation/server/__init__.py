"""A server that speaks OpenAI's protocol: met, put under a steady load, and heard."""
