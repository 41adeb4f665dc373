-- The classic design: one row per delivery that changes its status, random keys, an index over what is due.
CREATE TABLE endpoints (
  id     uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  number int UNIQUE NOT NULL,                 -- the receiver's
  url    text NOT NULL,
  secret text NOT NULL
);
CREATE TABLE events (
  id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  type       text NOT NULL,
  payload    text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE deliveries (
  id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  event_id        uuid NOT NULL REFERENCES events,
  endpoint_id     uuid NOT NULL REFERENCES endpoints,
  status          text NOT NULL DEFAULT 'pending',
  attempts        int NOT NULL DEFAULT 0,
  next_attempt_at timestamptz NOT NULL DEFAULT now(),
  last_error      text,
  created_at      timestamptz NOT NULL DEFAULT now(),
  updated_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON deliveries (next_attempt_at) WHERE status IN ('pending', 'failed');
CREATE INDEX ON deliveries (event_id);
CREATE INDEX ON deliveries (endpoint_id, created_at);
CREATE TABLE attempts (
  id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  delivery_id uuid NOT NULL REFERENCES deliveries,
  status_code int,
  error       text,
  duration_ms int NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON attempts (delivery_id);
