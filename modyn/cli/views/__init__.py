"""Views of the commands: tables and text."""
