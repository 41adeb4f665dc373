-- Deliveries that were made and ended, by SQL: an event and an attempt each, over the last 20 hours, so that they share
-- today's partitions with what is measured. Beside telemetry/fill.sql, whose attempts these are.

INSERT INTO event_types (tenant_id, name) SELECT DISTINCT tenant_id, 'load.history' FROM places;
CREATE TEMP TABLE history_types AS SELECT tenant_id, id FROM event_types WHERE name = 'load.history';
CREATE UNIQUE INDEX ON history_types (tenant_id);
ANALYZE history_types;

CREATE PROCEDURE pg_temp.history(first int8, count int8) LANGUAGE plpgsql AS $$
DECLARE
  since timestamptz := now() - interval '20 h';
  apart interval := interval '20 h' / count;
  endpoints int8 := (SELECT count(*) FROM places);
BEGIN
  CALL pg_temp.attempt(first, count, since, apart);
  INSERT INTO events (id, tenant_id, type_id, payload, fan_endpoint, fan_delivery)
  SELECT pg_temp.id(g.at, g.n), p.tenant_id, t.id, '{"id":1,"total":"49.90"}', ARRAY[p.id], ARRAY[pg_temp.id(g.at, g.n)]
  FROM (SELECT n, since + (n - first) * apart AS at FROM generate_series(first, first + count - 1) n) g
  JOIN places p ON p.place = g.n % endpoints
  JOIN history_types t ON t.tenant_id = p.tenant_id;
END $$;
