"""Stand-ins for object stores, on loopback: what is asked of them is counted, and they fail.

They speak the protocols of GCS, S3 and Azure to the clients that we use: nothing of ours is
replaced.
"""
