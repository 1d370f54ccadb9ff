"""The ports of a real machine: clock, random numbers, network and local disk; and fair turns of its event loop.

May import: security

~ clock       the Clock and Rng ports on the operating system
~ network     the Net port on non-blocking TCP sockets
~ descriptors  open file descriptors of the process, and failures to accept for want of one
~ pauses      pauses of the process, in which nobody is served
~ readiness   socket readiness by one epoll per process, or by the event loop
~ tls         encrypted streams over another Net, with bounded handshakes
  tls_faults  the reasons of failed TLS connections in words
  tls_options the settings of TLS of one side
~ tls_contexts  OpenSSL's contexts, made anew when settings or files change
~ http_request  one bounded request to the HTTP server of somebody else
~ private_file  edits of a small file of one user: locked, and whole or not at all
~ turns       fair shares of the event loop between clients
~ local_disk  the Disk port on a real directory, with fsync in threads
"""
