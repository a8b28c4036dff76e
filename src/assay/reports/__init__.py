"""Render a Page in a terminal, as Markdown, HTML and PNG."""
