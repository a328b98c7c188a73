"""The peer of `lockctl acquire`: a bare psycopg script that takes the same lease and prints its holder."""

import argparse
import os
import uuid

import psycopg

parser = argparse.ArgumentParser()
parser.add_argument("key")
parser.add_argument("--ttl", type=int, default=60)
args = parser.parse_args()
with psycopg.connect(os.environ["LOCKCTL_DSN"], autocommit=True) as conn:
    row = conn.execute(
        "INSERT INTO ffdb_locks AS t (lock_key, lock_id, expires_at)"
        " VALUES (%s, %s, clock_timestamp() + %s * interval '1 s')"
        " ON CONFLICT (lock_key) DO UPDATE SET lock_id = EXCLUDED.lock_id, expires_at = EXCLUDED.expires_at"
        " WHERE t.expires_at <= clock_timestamp() RETURNING lock_id",
        (args.key, str(uuid.uuid4()), args.ttl),
    ).fetchone()
if row is None:
    raise SystemExit(3)
print(row[0])
