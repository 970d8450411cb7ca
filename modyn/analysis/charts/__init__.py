"""Charts of reports and pictures of cache plans."""
