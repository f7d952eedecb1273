"""One self-contained HTML file of page data: templates, styles and scripts put together, under a policy."""
