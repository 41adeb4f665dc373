-- Idempotency keys of POSTs that are no events: `claim` is set while the first one runs, `reply` (encrypted: it may hold a secret) once it
-- has answered. `tenant_id` is the tenant's key; 0 for the admin API, and the negative key of an organization for its own requests.
-- `key` begins with its name space: `b:` an event of a batch, `k:` the header, `x:` an external_id.
ALTER TABLE idempotency_keys ADD claim uuid;
