"""Views of a cluster that stay open on a terminal: `tiered top`, and `tiered group describe --watch`.

May import: as cli

  sparkline  the course of a number as a line of characters
  top_state  brokers, topics and groups as replies told them, with their rates
  top_table  rows of the view, sorted and cut to the screen
~ requests   the next request to each broker
~ top        `tiered top`: rounds of requests, keys, and the screen
~ watch      `tiered group describe --watch`
~ keys       keys that are pressed meanwhile
"""
