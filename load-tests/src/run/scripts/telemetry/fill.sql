-- A day of a busy installation, by SQL. The first 50 endpoints have 95 % of all samples, each of them more than are sorted by
-- PostgreSQL; the others the rest. A million deliveries wait behind the open breaker of the last endpoint.

CREATE FUNCTION pg_temp.id(at timestamptz, n int8) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::int8), 12, '0') || '7000' || '8' || lpad(to_hex(n), 15, '0'))::uuid $$;

CREATE TEMP TABLE places AS
SELECT row_number() OVER (ORDER BY id) - 1 AS place, id, tenant_id, slot FROM endpoints ORDER BY id;
CREATE UNIQUE INDEX ON places (place);
ANALYZE places;

-- So many attempts from `since` on, `apart` one after the other; numbers from `first` on say whose they are.
CREATE PROCEDURE pg_temp.attempt(first int8, count int8, since timestamptz, apart interval) LANGUAGE sql AS $$
  INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms,
                        queue_us, ttfb_us, outcome, status, final_status, applied)
  SELECT p.tenant_id, pg_temp.id(g.at, g.n), 1, 1, g.at, p.id, pg_temp.id(g.at, g.n), 1, 5 + (g.n * 7919 % 397 * (1 + g.n % 11))::int,
         1500, 15000, 1, 200, 3, true
  FROM (
    SELECT n, since + (n - first) * apart AS at,
           CASE WHEN n % 20 = 0 THEN busy + n / 20 % (endpoints - busy) ELSE n % busy END AS place
    FROM generate_series(first, first + count - 1) n,
         (SELECT count(*) AS endpoints, least(50, count(*) / 2) AS busy FROM places) c) g
  JOIN places p ON p.place = g.place $$;

CREATE PROCEDURE pg_temp.fill(samples int8) LANGUAGE plpgsql AS $$
DECLARE
  endpoints int8 := (SELECT count(*) FROM places);
BEGIN
  CALL pg_temp.attempt(0, samples, now() - interval '1 day' + interval '10 min', (86400.0 - 600) / samples * interval '1 s');

  INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, attempts_made, kind, root_id)
  SELECT p.tenant_id, pg_temp.id(now(), n), p.id, pg_temp.id(now(), n), 1 + n % 7, 8, 0, pg_temp.id(now(), n)
  FROM generate_series(1, samples / 10) n JOIN places p ON p.place = n % endpoints;

  INSERT INTO endpoint_runtime (endpoint_id, slot, tenant_id, breaker, opened_at, cooldown, next_probe_at)
  SELECT id, slot, tenant_id, 1, now(), interval '1 h', now() + interval '1 h' FROM places WHERE place = endpoints - 1;
  INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
  SELECT p.slot, p.tenant_id, p.id, pg_temp.id(now(), n), pg_temp.id(now(), n)
  FROM generate_series(1, samples / 10) n JOIN places p ON p.place = endpoints - 1;
END $$;
