-- Ed25519 keys of endpoints that sign with `v1a`. A table of its own, because a program of before takes every row of
-- endpoint_secrets for an HMAC secret.
CREATE TABLE endpoint_key_pairs (
  id          int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  endpoint_id int8 NOT NULL,
  public_key  bytea NOT NULL CHECK (octet_length(public_key) = 32),
  sealed      bytea NOT NULL,                 -- the seed, as endpoint_secrets.sealed
  created_at  timestamptz NOT NULL DEFAULT now(),
  expires_at  timestamptz                     -- NULL: the current one; set by a rotation
);
CREATE INDEX endpoint_key_pairs_endpoint ON endpoint_key_pairs (endpoint_id);
