-- The tenant's own id of an event: shown, and a filter. Nullable without default: no table is rewritten. The index holds only events
-- that have one, so others pay nothing. It is made before there is any: partitions of an installation that was running are read once.
ALTER TABLE events ADD external_id text;
ALTER TABLE events_kept ADD external_id text;
CREATE INDEX events_external ON events (tenant_id, external_id, id) WHERE external_id IS NOT NULL;
