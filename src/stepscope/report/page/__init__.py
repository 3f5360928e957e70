"""Parts of a page, how values read on it, and the template, style and script as data files."""
