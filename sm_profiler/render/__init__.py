"""A report as HTML, notebook, Markdown and text."""
