-- The backlog job asks every ten seconds which endpoints it turned away, and must not read all endpoints for it.
-- backlog_full changes rarely and on no hot path, so it may stand in a predicate. The index holds a handful of rows.
CREATE INDEX endpoints_backlog_full ON endpoints (tenant_id, id) WHERE backlog_full;
