"""The commands `tiered serve` and `tiered up`.

May import: cli, http

~ serve        one broker process until SIGTERM
~ machine      one broker for each of several processes, under one configuration
~ processes    the number of processes of a machine, and moves of logs between them (I36)
~ up           a cluster of several brokers on one machine
~ supervise    child processes: start, restart, output, stop
~ child        a command that ends with its parent process
~ ephemeral    a broker that ends with its parent, and its directory with it
~ directories  checks of a data directory before a broker uses it
~ sources      settings from file, environment and options
~ scram_users  the first users of a cluster, from `--add-scram`
~ browser      a browser that shows a page of the console, from `--open`
~ log_output   the log format on stderr, one line for each event
"""
