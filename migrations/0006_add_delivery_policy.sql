-- What delivery policy needs to find again after a hand-over or a crash. Rows of endpoint_runtime are written on
-- transitions and at hand-over only. All columns are nullable without default: no table is rewritten.

ALTER TABLE endpoint_runtime
  ADD slot           int2,
  ADD tenant_id      int4,
  ADD refusing_since timestamptz,             -- first of a run of ten or more permanent refusals
  ADD recover_from   timestamptz,             -- dead letters of the outage [recover_from, recover_until] are being replayed
  ADD recover_until  timestamptz,
  ADD recover_refused bool,                   -- ... those refused for good as well
  ADD tat_version    int4,                    -- the endpoint's version that tat_at was counted under
  DROP COLUMN tat_epoch,                      -- was never written; slots.emptied_at says more
  ADD saved_epoch    int8,                    -- the order of what owners saved: a statement that was late changes nothing
  ADD saved_seq      int8,
  ADD parked_until   timestamptz,             -- what Retry-After asked for, at hand-over
  ADD p95_ms         int4,                    -- written by the statistics; above 5 s it halves the breaker's threshold
  ADD enabled_at     timestamptz;             -- the last re-enabling: failing_since starts anew, and a probe goes first

-- Endpoints somebody has to look at although nothing of them may be pending: a breaker that is not closed, a recovery.
CREATE INDEX endpoint_runtime_awake ON endpoint_runtime (slot, endpoint_id) WHERE breaker <> 0 OR recover_until IS NOT NULL;

ALTER TABLE slots ADD emptied_at timestamptz;   -- the last take-over from a dead owner: what was sent before is not known (R1)

-- The event's own end of life, so that what waits behind an open breaker ends in time without reading its event.
ALTER TABLE ready ADD deliver_before timestamptz;
CREATE INDEX ready_deadline ON ready (slot, endpoint_id, deliver_before) WHERE deliver_before IS NOT NULL;
ALTER TABLE retry ADD deliver_before timestamptz, ADD first_at timestamptz;  -- first_at: when the first attempt started
CREATE INDEX retry_deadline ON retry (slot, endpoint_id, deliver_before) WHERE deliver_before IS NOT NULL;
ALTER TABLE ready_ordered ADD deliver_before timestamptz, ADD first_at timestamptz;
-- What of a FIFO endpoint was tried and waits, without a walk over its keys. A row is tried only when it is its key's first.
CREATE INDEX ready_ordered_due ON ready_ordered (slot, endpoint_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX ready_ordered_deadline ON ready_ordered (slot, endpoint_id, deliver_before) WHERE deliver_before IS NOT NULL;

ALTER TABLE dead_letters ADD order_key int8, ADD order_seq int8;
CREATE INDEX dead_letters_order ON dead_letters (endpoint_id, order_key) WHERE order_key IS NOT NULL AND replayed_as IS NULL;
-- What recovery may replay by itself: classes transient, misconfigured and permanent, but for what it made itself.
CREATE INDEX dead_letters_revivable ON dead_letters (endpoint_id, class, dead_at) WHERE replayed_as IS NULL AND kind <> 2 AND class <= 3;
CREATE INDEX dead_letters_replayed ON dead_letters (tenant_id, replayed_as) WHERE replayed_as IS NOT NULL;

-- Which URL a version of an endpoint had: an attempt stores the version.
CREATE TABLE endpoint_urls (
  endpoint_id int8 NOT NULL,
  version     int4 NOT NULL,
  url         text NOT NULL,
  PRIMARY KEY (endpoint_id, version)
);
INSERT INTO endpoint_urls SELECT id, version, url FROM endpoints;

-- Operational events: one per endpoint, kind and window.
CREATE TABLE notices (
  endpoint_id  int8 NOT NULL,
  kind         int2 NOT NULL,
  window_start timestamptz NOT NULL,
  tenant_id    int4 NOT NULL,
  count        int8 NOT NULL DEFAULT 1,       -- how often it happened in the window; the notice itself goes at the first
  event_id     uuid,                          -- NULL: nobody subscribes
  PRIMARY KEY (endpoint_id, kind, window_start)
);
CREATE INDEX notices_age ON notices (window_start);
