-- What a tenant says of a type of event, and the JSON Schema that its payloads must fit. A row without `declared_at` is there because
-- an event had the type. All nullable without default, and the table is small.
ALTER TABLE event_types
  ADD declared_at    timestamptz,
  ADD updated_at     timestamptz,
  ADD description    text,
  ADD schema         text,                    -- as it was written
  ADD schema_version int8;                    -- tenants.config_version that it came with: ingest compares it
CREATE INDEX event_types_schema ON event_types (tenant_id) WHERE schema IS NOT NULL;
