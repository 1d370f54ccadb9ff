"""This broker's data directory: its logs, the proofs of a stop, and reports of what may be lost.

May import: access, replication

~ data_directory     the broker's own files: meta.properties, boot mark, clean mark
  metadata_position  the note of what the metadata log had reached: it tells a bucket that went back
  adopted_logs       the file that names logs from another process of this machine (I36)
  move_plan          which log moves between the processes of a machine, and its journal (I36)
~ log_mover          the renames of that plan, restartable at each step (I36)
~ log_store          the open logs of this broker
  loss_rules         the rules of losses: what is due to be reported, and what falls back (R1, R4, R5)
~ possible_losses    partitions whose logs may lack records, until the controller knows (R1, R4)
~ loss_reporter      reports of possible losses, and trust in the data directory
~ awaited_ends       log end offsets that leader elections wait for (R4)
~ disk_reports       reports of a full disk to the controller
~ stored_ends        notes of partitions that lie completely in the bucket
"""
