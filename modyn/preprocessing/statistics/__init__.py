"""Statistics of a stream in bounded memory."""
