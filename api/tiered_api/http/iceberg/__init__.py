"""A read-only catalogue of Iceberg: the tables of the warehouse that have metadata of Iceberg, for other engines.

May import: as http

~ catalogue   the addresses of Iceberg's REST catalogue
"""
