-- Who sends: 256 slots, each owned by one worker incarnation at a time, fenced by owner and epoch.

CREATE TABLE workers (                        -- one row per life of a worker process; deleting it is declaring it dead
  id         uuid PRIMARY KEY,
  name       text NOT NULL DEFAULT '',        -- host and process id, for people
  started_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL,
  in_flight  uuid[] NOT NULL DEFAULT '{}'     -- deliveries under way for over 500 ms, at most 2,000
) WITH (fillfactor = 50);

CREATE TABLE slots (
  slot           int2 PRIMARY KEY,
  owner          uuid,
  epoch          int8 NOT NULL DEFAULT 0,     -- number of take-overs
  released_epoch int8                         -- = epoch when the last owner handed over cleanly
) WITH (fillfactor = 50);
INSERT INTO slots (slot) SELECT generate_series(0, 255);

CREATE TABLE suspects (                       -- in flight when their worker died: sent one at a time; after three deaths a dead letter
  delivery_id uuid PRIMARY KEY,
  deaths      int2 NOT NULL,
  seen_at     timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE endpoint_runtime (               -- written on transitions and at hand-over, never per attempt
  endpoint_id   int8 PRIMARY KEY,
  breaker       int2 NOT NULL DEFAULT 0,
  opened_at     timestamptz,
  cooldown      interval,
  next_probe_at timestamptz,
  failing_since timestamptz,
  tat_at        timestamptz,
  tat_epoch     int8
) WITH (fillfactor = 50);

CREATE TABLE commands (                       -- what the API asks of a slot's owner
  id          int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  slot        int2 NOT NULL,
  tenant_id   int4 NOT NULL,
  endpoint_id int8 NOT NULL,
  delivery_id uuid,
  verb        int2 NOT NULL,                  -- 1 reload the endpoint 2 retry the delivery now
  created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX commands_slot ON commands (slot, id);

CREATE TABLE leases (                         -- jobs that run in one process at a time, fenced like slots
  name  text PRIMARY KEY,
  owner uuid,
  epoch int8 NOT NULL DEFAULT 0
);

CREATE TABLE retention (
  one          bool PRIMARY KEY DEFAULT true CHECK (one),
  replay_floor timestamptz NOT NULL DEFAULT '-infinity'
);
INSERT INTO retention DEFAULT VALUES;
