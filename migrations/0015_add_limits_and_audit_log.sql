-- Limits, the audit log, and what is being deleted. All columns are nullable or have constant defaults: no table is rewritten.

ALTER TABLE organizations
  ADD limits     jsonb NOT NULL DEFAULT '{}', -- what its keys and tenants may; absent: the operator's default
  ADD deleted_at timestamptz;                 -- its keys and its tenants' stop at once; the rest goes in the background
ALTER TABLE tenants
  ADD limits     jsonb NOT NULL DEFAULT '{}', -- absent: its organization's
  ADD deleted_at timestamptz,
  ADD changed_at timestamptz;                 -- when limits or deletion changed last: API processes ask what is new each second
CREATE INDEX tenants_changed ON tenants (changed_at) WHERE changed_at IS NOT NULL;
CREATE INDEX tenants_organization ON tenants (organization_id, id) WHERE organization_id IS NOT NULL;
ALTER TABLE api_keys ADD rate_limit jsonb;    -- {"per_second", "burst"}; NULL: its owner's

CREATE TABLE event_counts (                   -- events accepted by tenants with a quota; flushed each second, never per event
  tenant_id int4 NOT NULL,
  day       date NOT NULL,                    -- UTC
  events    int8 NOT NULL,
  PRIMARY KEY (tenant_id, day)
) WITH (fillfactor = 50);

CREATE TABLE audit_log (                      -- append; deleted by its own retention
  id              uuid PRIMARY KEY,           -- UUIDv7: the instant is in it
  tenant_id       int4,                       -- whose configuration changed; NULL: an organization's own, or the operator's
  organization_id int4,                       -- the tenant's organization too, so that one index serves its reader
  actor           int2 NOT NULL,              -- 1 key 2 admin token 3 command line
  key_id          uuid,
  key_hint        text,
  action          text NOT NULL,
  object_type     text NOT NULL,
  object_id       uuid,
  changed         text[] NOT NULL,            -- names of fields, never values
  request_id      text
);
CREATE INDEX audit_log_tenant ON audit_log (tenant_id, id) WHERE tenant_id IS NOT NULL;
CREATE INDEX audit_log_organization ON audit_log (organization_id, id) WHERE organization_id IS NOT NULL;

CREATE TABLE removals (                       -- what a job removes in the background, oldest first
  id              int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  public_id       uuid NOT NULL UNIQUE,
  kind            int2 NOT NULL,              -- 1 a tenant 2 an organization 3 all payloads of a tenant 4 the payload of one event
  tenant_id       int4,
  organization_id int4,
  object_id       uuid NOT NULL,              -- public id of what is removed
  before_id       uuid,                       -- kind 3: events before this one
  step            int2 NOT NULL DEFAULT 0,
  after_id        uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',  -- how far the step is
  rows_done       int8 NOT NULL DEFAULT 0,
  created_at      timestamptz NOT NULL DEFAULT now(),
  not_before      timestamptz NOT NULL DEFAULT now(),
  finished_at     timestamptz
);
CREATE INDEX removals_open ON removals (not_before, id) WHERE finished_at IS NULL;
CREATE INDEX removals_tenant ON removals (tenant_id, id) WHERE tenant_id IS NOT NULL;
