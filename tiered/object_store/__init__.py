"""The ObjectStore port on S3, on a directory and in memory, and wrappers of any store.

May import: records, system

~ s3           the ObjectStore port on S3 and compatible stores, through boto3
~ s3_clients   the clients of a store on S3, made anew when its credentials change
  s3_refusals  decisions about a store's refusals: an old login, a missing checksum
~ s3_session   sessions of boto3 that cost little, and the endpoint that was set
~ directory    the ObjectStore port on a directory that several processes share
~ memory       the ObjectStore port in memory, the model for the other stores
~ faulty       a wrapper that injects errors, lost replies, delays and damage
~ metered      a wrapper that counts requests and bytes, and detects outages
  store_usage  requests, bytes and stored bytes by the hour, over restarts
~ paced        a wrapper that lets each request of background work wait for its turn
~ conditional_put  one conditional put until its outcome is known (M1)
~ probe        the startup check that a store honours conditional writes
~ url          the store for a file, s3 or memory URL
~ upload_body  an upload's file slices and buffers as one seekable request body
  key_ring     the named keys that encrypt a bucket, as lines of a text
~ key_file     the file with the key ring, read again when it changes
  encrypted_object  the bytes of an encrypted object
~ encrypting_file   the parts of an upload, encrypted while they are read
~ encrypted    a wrapper that encrypts what it writes, and decrypts what it reads
  envelope     JSON objects of the bucket with a CRC-32C of their content
"""
