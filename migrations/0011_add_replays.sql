-- What people ask to be sent again. A replay is worked off by a job, part by part (one per endpoint), and counts
-- what came of its deliveries by looking where they are: nothing is added to a delivery that is no replay, nor to
-- the statement that records it.

CREATE TABLE replays (
  id             int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  public_id      uuid NOT NULL UNIQUE,
  tenant_id      int4 NOT NULL,
  endpoint_id    int8,                        -- NULL: dead letters of whichever endpoint
  statuses       int2[] NOT NULL,             -- which deliveries, by their final status
  missing        bool NOT NULL,               -- and events that the endpoint never had a delivery of
  classes        int2[],                      -- of dead letters; NULL: any
  event_type     text,                        -- NULL: any
  delivery_ids   uuid[],                      -- NULL: any
  since          timestamptz,
  until          timestamptz,
  fingerprint    bytea NOT NULL,              -- of what was asked for: the same is not done twice at once
  per_second     float8 NOT NULL,
  paced_until    timestamptz NOT NULL DEFAULT now(),
  status         int2 NOT NULL,               -- 1 running 2 finished 3 cancelled 4 failed
  total          int8 NOT NULL DEFAULT 0,     -- found so far
  done           int8 NOT NULL DEFAULT 0,
  failed         int8 NOT NULL DEFAULT 0,
  skipped        int8 NOT NULL DEFAULT 0,     -- cancelled or skipped after they were made
  not_replayable int8 NOT NULL DEFAULT 0,
  created_at     timestamptz NOT NULL DEFAULT now(),
  finished_at    timestamptz                  -- nothing of it is under way any more
);
CREATE UNIQUE INDEX replays_running ON replays (tenant_id, fingerprint) WHERE status = 1;
CREATE INDEX replays_tenant ON replays (tenant_id, public_id);
CREATE INDEX replays_ended ON replays (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE replay_parts (                   -- what is left to do at one endpoint; gone when nothing is
  replay_id   int4 NOT NULL,
  endpoint_id int8 NOT NULL,
  phase       int2 NOT NULL,                  -- 1 deliveries that ended 2 events 3 nothing more to be found
  cursor      uuid NOT NULL,                  -- found up to here
  due_at      timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (replay_id, endpoint_id)
) WITH (fillfactor = 50);
CREATE INDEX replay_parts_due ON replay_parts (due_at);

CREATE TABLE replay_outstanding (             -- made and not ended, as far as is known: a bounded number per endpoint
  endpoint_id int8 NOT NULL,
  replay_id   int4 NOT NULL,
  delivery_id uuid NOT NULL,
  PRIMARY KEY (endpoint_id, replay_id, delivery_id)
);

CREATE TABLE replay_skips (                   -- why some could not be sent again, with the first of them
  replay_id int4 NOT NULL,
  reason    int2 NOT NULL,
  count     int8 NOT NULL,
  first     uuid[] NOT NULL,                  -- events
  PRIMARY KEY (replay_id, reason)
);

CREATE TABLE replayed (                       -- one row per delivery that a person asked for anew
  tenant_id   int4 NOT NULL,
  delivery_id uuid NOT NULL,
  endpoint_id int8 NOT NULL,
  event_id    uuid NOT NULL,
  source_id   uuid,                           -- the delivery that it repeats; NULL: there was none
  replay_id   int4,                           -- NULL: that one delivery was asked for
  PRIMARY KEY (delivery_id)
);
CREATE INDEX replayed_event ON replayed (endpoint_id, event_id);

-- A walk over an endpoint's dead letters in the order of their ids: lists and replays.
CREATE INDEX dead_letters_endpoint ON dead_letters (endpoint_id, id);
