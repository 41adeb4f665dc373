-- A month of a busy installation, by SQL: through the API it would take hours. `load.tenants` is who there is, `load.day` makes
-- one day, `load.rest` what is not made by days. Numbers decide everything, so two runs ask about the same rows.

CREATE SCHEMA load;

CREATE FUNCTION load.id(at timestamptz, kind int, n int8) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::int8), 12, '0') || '7' || lpad(to_hex(kind), 3, '0')
          || '8' || lpad(to_hex(n), 15, '0'))::uuid $$;

-- The scenario's tenants: number 0 has four fifths of everything. Of its endpoints (in the order of their making) the first is
-- the busy one, the second was busy 20 days ago and is silent since, the third had three deliveries ever.
INSERT INTO event_types (tenant_id, name)
SELECT t.id, y.name FROM tenants t CROSS JOIN (VALUES ('order.created'), ('order.paid'), ('order.rare'), ('order.once')) y(name)
ORDER BY t.id, y.name;

CREATE TABLE load.tenants AS
SELECT substr(t.name, 6)::int AS number, t.id AS tenant_id,
       ARRAY(SELECT y.id FROM event_types y WHERE y.tenant_id = t.id ORDER BY y.name) AS types,   -- created, once, paid, rare
       ARRAY(SELECT e.id FROM endpoints e WHERE e.tenant_id = t.id ORDER BY e.id) AS endpoints,
       ARRAY(SELECT e.slot FROM endpoints e WHERE e.tenant_id = t.id ORDER BY e.id) AS slots
FROM tenants t WHERE t.name LIKE 'load-%';

CREATE UNLOGGED TABLE load.made (
  n int8, at timestamptz, id uuid, event_id uuid, tenant_id int4, type_id int4, endpoint_id int8, slot int2,
  status int2,                                -- as the API's
  twice bool                                  -- two attempts
);

-- The deliveries of a day that ended `back` days ago: two of each event.
CREATE FUNCTION load.day(back int, deliveries int8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  TRUNCATE load.made;
  INSERT INTO load.made
  SELECT g.n, g.at, load.id(g.at, 1 + (g.n % 2)::int, back * deliveries + g.n), load.id(g.at, 0, back * deliveries + g.n / 2), t.tenant_id,
         t.types[CASE WHEN g.e % 50000 = 7 THEN 4 WHEN back = 25 AND g.e = 11 THEN 2 WHEN g.e % 2 = 0 THEN 1 ELSE 3 END],
         t.endpoints[g.place], t.slots[g.place],
         CASE WHEN back = 5 AND g.number = 0 AND g.n * 10 BETWEEN deliveries * 4 AND deliveries * 6 THEN 4   -- an outage that lasts
              WHEN g.n % 101 = 1 THEN 5
              WHEN g.n % 19997 = 3 THEN 6
              WHEN g.n % 199 = 3 THEN 7
              WHEN back = 0 AND g.n % 20 = 5 THEN 1
              WHEN back = 0 AND g.n % 40 = 7 THEN 4
              ELSE 3 END,
         g.n % 16 IN (0, 5, 10, 15)
  FROM (
    SELECT n, n / 2 AS e, w.number, now() - make_interval(days => back + 1) + (n / 2) * interval '1 day' * 2 / deliveries AS at,
           CASE WHEN w.number > 0 THEN 1 + (n % w.places)::int
                WHEN n = 22 AND back IN (3, 15, 27) THEN 3
                WHEN n % 2 = 0 AND back IN (20, 21) THEN 2
                WHEN n % 2 = 0 THEN 1
                ELSE 4 + ((n / 2) % (w.places - 3))::int END AS place
    FROM generate_series(0, deliveries - 1) n
    CROSS JOIN LATERAL (
      SELECT CASE WHEN (n / 2) % 10 < 8 THEN 0 ELSE 1 + (n / 20) % (s.tenants - 1) END AS number, s.places
      FROM (SELECT count(*) AS tenants, max(cardinality(endpoints)) AS places FROM load.tenants) s) w) g
  JOIN load.tenants t ON t.number = g.number;
  ANALYZE load.made;

  INSERT INTO events (id, tenant_id, type_id, payload, channels, external_id, fan_endpoint, fan_delivery)
  SELECT a.event_id, a.tenant_id, a.type_id, '{"id":1,"total":"49.90"}', CASE WHEN a.n % 20000 = 8 THEN ARRAY['vip'] END,
         CASE WHEN a.n % 40 = 0 THEN 'order-' || a.n END, ARRAY[a.endpoint_id, b.endpoint_id], ARRAY[a.id, b.id]
  FROM load.made a JOIN load.made b ON b.n = a.n + 1 WHERE a.n % 2 = 0 ORDER BY a.n;

  INSERT INTO attempts (tenant_id, delivery_id, no, epoch, started_at, endpoint_id, event_id, endpoint_version, total_ms,
                        queue_us, ttfb_us, outcome, status, final_status, applied, addr, response)
  SELECT m.tenant_id, m.id, a.no, 1, a.started_at, m.endpoint_id, m.event_id, 1, 20 + (m.n % 200)::int, 1500, 15000,
         CASE WHEN a.ends AND m.status = 3 THEN 1 ELSE 2 END, CASE WHEN a.ends AND m.status = 3 THEN 200 ELSE 503 END,
         CASE WHEN a.ends AND m.status IN (3, 5) THEN m.status END, true, '127.0.0.1', 'ok'
  FROM load.made m CROSS JOIN LATERAL (
    SELECT 1::int2 AS no, m.at + interval '60 ms' AS started_at, NOT m.twice AS ends
    UNION ALL SELECT 2, least(m.at + (30 + m.n % 20000) * interval '1 s', now()), true WHERE m.twice) a
  WHERE m.status IN (3, 4, 5) ORDER BY m.n;

  INSERT INTO dead_letters (tenant_id, id, endpoint_id, event_id, class, outcome, status, reason, fingerprint, attempts_made, kind, root_id, dead_at, replayed_as)
  SELECT tenant_id, id, endpoint_id, event_id, CASE WHEN n % 4999 = 1 THEN 5 ELSE 1 + n % 3 END, 2, 503, 'retries exhausted', n % 7, 2, 0, id,
         least(at + interval '1 h', now()), CASE WHEN n % 10 = 1 THEN load.id(at, 3, n) END
  FROM load.made WHERE status = 5;

  INSERT INTO closed (tenant_id, id, endpoint_id, event_id, status, reason)
  SELECT tenant_id, id, endpoint_id, event_id, status, CASE status WHEN 6 THEN 4 ELSE 2 END FROM load.made WHERE status IN (6, 7);

  INSERT INTO ready (slot, tenant_id, endpoint_id, id, event_id)
  SELECT slot, tenant_id, endpoint_id, id, event_id FROM load.made WHERE status = 1 AND n % 200 <> 5;
  INSERT INTO ready_ordered (slot, endpoint_id, order_key, order_seq, id, event_id, tenant_id)
  SELECT slot, endpoint_id, n % 500, n, id, event_id, tenant_id FROM load.made WHERE status = 1 AND n % 200 = 5;
  INSERT INTO retry (slot, tenant_id, endpoint_id, id, event_id, attempts_made, due_at)
  SELECT slot, tenant_id, endpoint_id, id, event_id, 1, now() + interval '1 day' FROM load.made WHERE status = 4;
END $$;

-- What the other lists show: `scale` is the number of attempts. Most of it is the large tenant's.
CREATE FUNCTION load.rest(scale int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  large int4 := (SELECT tenant_id FROM load.tenants WHERE number = 0);
  small int4 := (SELECT tenant_id FROM load.tenants WHERE number = 1);
  company int4 := (SELECT min(id) FROM organizations);
BEGIN
  UPDATE tenants SET organization_id = company WHERE name LIKE 'load-%';
  INSERT INTO organizations (public_id, name) SELECT load.id(now(), 1, n), 'other' FROM generate_series(1, scale / 1000) n;
  INSERT INTO tenants (public_id, name) SELECT load.id(now(), 2, n), 'other' FROM generate_series(1, scale / 1000) n;
  INSERT INTO workers (id, expires_at, in_flight)
  SELECT load.id(now(), 3, 0), now() + interval '1 day', ARRAY(SELECT id FROM ready WHERE tenant_id = large ORDER BY id DESC LIMIT 500);
  -- Types that nobody uses any more, beside those that were declared.
  INSERT INTO event_types (tenant_id, name, declared_at)
  SELECT large, 'old.n' || n, CASE WHEN n % 5 = 0 THEN now() END FROM generate_series(1, least(scale / 1000, 9000)) n;
  -- Deleted ones stay: their deliveries can be read.
  INSERT INTO endpoints (public_id, tenant_id, slot, state, url)
  SELECT load.id(now(), 4, n), large, n % 256, CASE WHEN n % 5 = 0 THEN 1 ELSE 3 END, 'http://127.0.0.1/' FROM generate_series(1, scale / 10000) n;
  INSERT INTO replays (public_id, tenant_id, endpoint_id, statuses, missing, fingerprint, per_second, status, finished_at)
  SELECT load.id(now() - n * interval '1 min', 5, n), large, (SELECT endpoints[1] FROM load.tenants WHERE number = 0), '{5}', false, '\x00', 10, 2, now()
  FROM generate_series(1, scale / 1000) n;
  INSERT INTO removals (public_id, kind, tenant_id, object_id, finished_at)
  SELECT load.id(now() - n * interval '1 min', 6, n), 4, small, load.id(now(), 6, n), now() FROM generate_series(1, scale / 100) n;
  INSERT INTO audit_log (id, tenant_id, organization_id, actor, action, object_type, object_id, changed)
  SELECT load.id(now() - n * interval '2 s', 7, n), CASE WHEN n % 10 < 9 THEN large ELSE small END, company, 2,
         CASE WHEN n = scale / 20 THEN 'endpoint.deleted' ELSE 'endpoint.updated' END, 'endpoint', load.id(now(), 7, n % 1000), '{url}'
  FROM generate_series(1, scale / 10) n;
  INSERT INTO api_keys (public_id, tenant_id, hash, hint, name, scopes)
  SELECT load.id(now() - n * interval '1 min', 8, n), large, decode(md5('load ' || n), 'hex'), 'prk_', 'old', '{read}' FROM generate_series(1, 1000) n;
END $$;
