"""The console: a page for browsers, made of files that the broker sends as they are.

May import: as http

~ pages    the page of each address, and the files that it loads
"""
