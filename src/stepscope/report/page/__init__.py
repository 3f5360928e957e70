"""What a page is made of: its parts, how values read on it, and the template, style and script as data files."""
