"""Typed tables: the values of a topic, and perhaps its keys, as columns; what does not fit is a dead letter.

May import: as pyspark_tiered

  kinds       types of columns, as Delta's schema
  names       names of columns for names in JSON
  ddl         a schema that a user declares
  variant     JSON values as variants, and back
  evolve      what a value does to a schema: fits, adds, widens, or fits no more
  json_text   strict parsing of one value
  fast        parsing of thousands of values at once by Arrow
  batches     the values of a batch as rows and dead letters
  form        the form of both tables, and the actions of their commits
~ tables      both tables: state, columns and commits
~ garbage     the pause of the cycle collector while values are parsed
~ convert     records as rows of both tables
  rewrite     files of a table with other columns
~ load        both tables as the target of a load: columns, dead letters, rows
  changes     rules for the values of fields, and what they do to the columns
~ field_count  rows that have a value in a field
~ change      renames, retypes or drops a field, or moves its values of other types
~ replay      dead letters that fit by now become rows
  reparse     values as columns by another parser
  cell_digest the digest of the cells of a typed row
"""
