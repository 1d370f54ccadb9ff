"""Counts of the work of requests, of a start and of an idle broker. They are the same however busy a machine is."""
