-- Append, and delete only what is live: a delivery's status is the table that it is in, so it is in exactly one place.
-- No foreign keys on these tables (multixacts), no row that every event or attempt updates, no partial index on a status.
-- Event and delivery ids are UUIDv7 from DATABASE time, so no row is ever outside the partitions and created_at is in the id.
-- Partitions are made by the program (shared::store::partitions), daily and ahead; there is no default partition.

CREATE TABLE events (
  id             uuid NOT NULL,
  tenant_id      int4 NOT NULL,
  type_id        int4 NOT NULL,
  deliver_before timestamptz,
  order_key      int8,
  order_seq      int8,
  channels       text[],
  payload        bytea NOT NULL,              -- byte for byte what came in and what goes out
  fan_endpoint   int8[] NOT NULL,             -- event -> deliveries without an index on any hot table
  fan_delivery   uuid[] NOT NULL,
  PRIMARY KEY (tenant_id, id)
) PARTITION BY RANGE (id);
ALTER TABLE events ALTER payload SET STORAGE EXTERNAL;
CREATE INDEX events_type ON events (tenant_id, type_id, id);

CREATE TABLE events_kept (LIKE events);       -- what a partition still owes a live delivery or a dead letter, moved before the drop
ALTER TABLE events_kept ADD PRIMARY KEY (tenant_id, id);

CREATE TABLE ready (                          -- may go now
  slot             int2 NOT NULL,
  attempts_made    int2 NOT NULL DEFAULT 0,
  tenant_id        int4 NOT NULL,
  endpoint_id      int8 NOT NULL,
  id               uuid NOT NULL,
  event_id         uuid NOT NULL,
  kind             int2 NOT NULL DEFAULT 0,   -- 0 live 1 replay 2 auto-replay 3 test 4 notice
  attempts_charged int2 NOT NULL DEFAULT 0,
  replay_id        int4,
  PRIMARY KEY (slot, endpoint_id, id)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX ready_by_id ON ready (tenant_id, id);

CREATE TABLE retry (LIKE ready INCLUDING DEFAULTS) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE retry
  ADD COLUMN due_at      timestamptz NOT NULL,
  ADD COLUMN last_status int2,
  ADD COLUMN last_error  int2,
  ADD PRIMARY KEY (slot, endpoint_id, due_at, id);   -- endpoint before due: a broken endpoint's backlog costs its neighbours nothing
CREATE UNIQUE INDEX retry_by_id ON retry (tenant_id, id);

CREATE TABLE ready_ordered (                  -- FIFO endpoints only; a retry is an UPDATE of due_at and keeps its place
  slot             int2 NOT NULL,
  endpoint_id      int8 NOT NULL,
  order_key        int8 NOT NULL,
  order_seq        int8 NOT NULL,
  id               uuid NOT NULL,
  event_id         uuid NOT NULL,
  tenant_id        int4 NOT NULL,
  attempts_made    int2 NOT NULL DEFAULT 0,
  attempts_charged int2 NOT NULL DEFAULT 0,
  due_at           timestamptz,
  kind             int2 NOT NULL DEFAULT 0,
  replay_id        int4,
  PRIMARY KEY (slot, endpoint_id, order_key, order_seq, id)
);
CREATE UNIQUE INDEX ready_ordered_by_id ON ready_ordered (tenant_id, id);
CREATE SEQUENCE order_seq;

CREATE TABLE dead_letters (                   -- never deleted by a replay (D6); deleted by their own retention
  tenant_id     int4 NOT NULL,
  id            uuid NOT NULL,
  endpoint_id   int8 NOT NULL,
  event_id      uuid NOT NULL,
  class         int2 NOT NULL,
  outcome       int2,
  status        int2,                         -- HTTP status of the last attempt
  reason        text,
  fingerprint   int8,                         -- equal for equal (class, outcome, status, kind of error): groups what broke the same way
  attempts_made int2 NOT NULL,
  kind          int2 NOT NULL,
  root_id       uuid NOT NULL,                -- the first delivery of this event to this endpoint
  dead_at       timestamptz NOT NULL DEFAULT now(),
  replayed_as   uuid,
  PRIMARY KEY (tenant_id, id)
);
CREATE INDEX dead_letters_open ON dead_letters (endpoint_id, dead_at) WHERE replayed_as IS NULL;
CREATE INDEX dead_letters_age ON dead_letters (dead_at);

CREATE TABLE closed (                         -- final without being delivered or dead: skipped, cancelled
  tenant_id     int4 NOT NULL,
  id            uuid NOT NULL,
  endpoint_id   int8 NOT NULL,
  event_id      uuid NOT NULL,
  status        int2 NOT NULL,
  reason        int2 NOT NULL,
  attempts_made int2 NOT NULL DEFAULT 0,
  closed_at     timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
) PARTITION BY RANGE (id);
CREATE INDEX closed_endpoint ON closed (endpoint_id, id);

CREATE TABLE attempts (                       -- one HTTP request each; also the latency samples
  tenant_id        int4 NOT NULL,
  delivery_id      uuid NOT NULL,
  no               int2 NOT NULL,
  epoch            int8 NOT NULL,
  started_at       timestamptz NOT NULL,      -- database time, estimated by the worker
  endpoint_id      int8 NOT NULL,
  event_id         uuid NOT NULL,
  endpoint_version int4 NOT NULL,
  total_ms         int4 NOT NULL,
  queue_us         int4,
  dns_us           int4,
  connect_us       int4,
  tls_us           int4,
  ttfb_us          int4,
  outcome          int2 NOT NULL,
  status           int2,
  final_status     int2,                      -- set only on the applied attempt that ends the delivery
  applied          bool NOT NULL,             -- false: made by a fenced worker; a latency sample and nothing else
  addr             inet,
  response         bytea,                     -- 256 B of a 2xx, 16 KiB otherwise; any bytes
  error            text,
  PRIMARY KEY (tenant_id, delivery_id, no, epoch, started_at)
) PARTITION BY RANGE (started_at);
CREATE INDEX attempts_endpoint ON attempts (endpoint_id, started_at) INCLUDE (total_ms);

CREATE TABLE idempotency_keys (               -- one plain table: partitions by time would end uniqueness at their edge
  tenant_id  int4 NOT NULL,
  key        text NOT NULL,
  body_hash  bytea NOT NULL,
  event_id   uuid,
  reply      bytea,
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);
