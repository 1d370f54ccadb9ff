"""The console: a page for browsers, made of files that the broker sends as they are.

May import: as http

~ pages      the page of each address, and the files that it loads
~ about      the caller of a page, and what the page may offer
  messages   no records in pages, if the console shows none
  read_only  no changes by pages, if the console is read-only
"""
