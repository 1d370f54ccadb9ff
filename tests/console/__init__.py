"""Pages of the console in a browser."""
