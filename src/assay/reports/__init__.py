"""How is it shown? Terminal, Markdown, HTML and PNG, all drawn from a Page."""
