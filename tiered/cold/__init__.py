"""The segments of one partition in the bucket.

May import: compaction, hot, object_store

  layout          object keys of the bucket, and the bytes of a segment object
  manifest        the ordered list of a partition's cold segments, and the rules for its changes
  manifest_codec  manifests and sub-manifests as bytes
~ manifest_store  manifest reads, and compare-and-swap under a leader epoch (M1)
  planner         decision on uploads, expiry and garbage
~ uploader        the upload of closed segments: object first, manifest second
~ verified_put    the put of a segment object, with its size and its last bytes read back
~ segment_check   the check of each batch of a local segment before upload
~ collector       the deletion of expired segments and garbage: manifest first, object last
  cleaned_object  segment objects of cleaned batches, with their indexes and sections
~ cleaner         the cleans of all compacted partitions in the bucket, one at a time for each
~ cold_cleaning   one clean: objects first, a change of the manifest for each 512 MiB of them, then garbage
~ clean_source    the batches that a clean reads, from the disk if it has them as uploaded
  chunks          aligned byte ranges of objects for ranged gets
~ fetch_throttle  the pace of cold reads of fetches
  hedge_plan      the decision to send a late get a second time
~ hedged_gets     ranged gets, late ones sent twice
~ cache           the bounded cache of chunks, with one get per chunk
  cached_files    names and order of the files of the cache on disk, and which ones go
~ disk_cache      the bounded cache of chunks on disk, which survives a restart
~ stream          one reader's read-ahead through a partition's segments in the bucket
~ reader          cold reads: fetch, range, look-up by time, segment sections
  read_backoff    pauses before a failed cold read may be repeated
"""
