"""Self-contained HTML files: templates, styles and scripts with a content security policy."""
