-- How fast endpoints answer: what the statistics job computes from the attempts, every minute for those with traffic.

CREATE TABLE endpoint_stats (
  endpoint_id     int8 PRIMARY KEY,
  tenant_id       int4 NOT NULL,
  computed_at     timestamptz NOT NULL,
  since           timestamptz NOT NULL,       -- samples are attempts that started in [since, computed_at)
  samples         int8 NOT NULL,
  p50_ms          float8,                     -- NULL without samples
  p95_ms          float8,
  p99_ms          float8,
  slow_since      timestamptz,                -- judged every 15 min
  degrading_since timestamptz
) WITH (fillfactor = 50);                     -- no index has a column that changes: updates stay in their page
CREATE INDEX endpoint_stats_tenant ON endpoint_stats (tenant_id, endpoint_id);

CREATE TABLE endpoint_stats_hours (           -- as they were at the end of an hour, for two days: what is slower than the day before
  hour        timestamptz NOT NULL,
  endpoint_id int8 NOT NULL,
  samples     int8 NOT NULL,
  p50_ms      float8 NOT NULL,
  p95_ms      float8 NOT NULL,
  p99_ms      float8 NOT NULL,
  PRIMARY KEY (endpoint_id, hour)
);
