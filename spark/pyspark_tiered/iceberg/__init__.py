"""Iceberg's metadata beside a Delta table: other engines read the same data files as an Iceberg table.

May import: as pyspark_tiered

  schema      the columns of a Delta table as Iceberg's schema, with the ids of the Parquet files
  data_file   a file of a Delta table as Iceberg's manifests describe it
  position_deletes  the rows that a deletion vector removes as a file of Iceberg
  manifest    manifests and their lists as Avro
  metadata    the metadata file of one version
  version     the next version from a commit of Delta's log
  unneeded    the files that no kept version names
~ export      the metadata of each version, in the folder of the table
"""
