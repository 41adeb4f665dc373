-- Who may publish, and where to: organizations, tenants, keys, endpoints and their secrets, event types.
-- Small tables, written rarely, read through caches. Ids are int keys inside (narrow hot rows) and TypeIDs outside (public_id).

CREATE TABLE organizations (
  id         int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  public_id  uuid NOT NULL UNIQUE,
  name       text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE tenants (
  id              int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  public_id       uuid NOT NULL UNIQUE,
  organization_id int4,                       -- NULL: a tenant that stands alone
  external_id     text,                       -- the organization's own name for it
  name            text NOT NULL,
  config_version  int8 NOT NULL DEFAULT 1,    -- +1 in the transaction of every change of the tenant's endpoints: makes fan-out exact
  max_pending     int4 NOT NULL DEFAULT 1000000,
  created_at      timestamptz NOT NULL DEFAULT now(),
  UNIQUE (organization_id, external_id)
) WITH (fillfactor = 50);

CREATE TABLE api_keys (
  id              int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  public_id       uuid NOT NULL UNIQUE,
  tenant_id       int4,
  organization_id int4,
  hash            bytea NOT NULL UNIQUE,      -- SHA-256 of the whole key; the key has 256 bits of its own, so no salt and no slow hash
  hint            text NOT NULL,              -- first characters, for people
  name            text NOT NULL,
  scopes          text[] NOT NULL,
  created_at      timestamptz NOT NULL DEFAULT now(),
  expires_at      timestamptz,
  revoked_at      timestamptz,
  last_used_at    timestamptz,
  CHECK ((tenant_id IS NULL) <> (organization_id IS NULL))
);
CREATE INDEX api_keys_tenant ON api_keys (tenant_id) WHERE tenant_id IS NOT NULL;
CREATE INDEX api_keys_organization ON api_keys (organization_id) WHERE organization_id IS NOT NULL;

CREATE TABLE endpoints (
  id             int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  public_id      uuid NOT NULL UNIQUE,
  tenant_id      int4 NOT NULL,
  slot           int2 NOT NULL CHECK (slot BETWEEN 0 AND 255),   -- stored when created; code never hashes again
  version        int4 NOT NULL DEFAULT 1,                        -- +1 with every change: URL, settings, state, secrets
  state          int2 NOT NULL DEFAULT 1 CHECK (state IN (1, 2, 3)),   -- 1 enabled 2 disabled 3 deleted
  state_reason   text,
  backlog_full   bool NOT NULL DEFAULT false,                    -- set by the backlog job: ingest turns new deliveries into `skipped`
  ordered        bool NOT NULL DEFAULT false,
  url            text NOT NULL,
  description    text NOT NULL DEFAULT '',
  event_types    text[] NOT NULL DEFAULT '{}',                   -- patterns; empty: every type that is not postrider.*
  channels       text[] NOT NULL DEFAULT '{}',                   -- empty: every channel
  settings       jsonb NOT NULL DEFAULT '{}',                    -- limits and backoff; absent key: the default of the program
  sealed_headers bytea,                                          -- own headers, JSON, encrypted: they hold the receivers' credentials
  metadata       jsonb NOT NULL DEFAULT '{}',
  created_at     timestamptz NOT NULL DEFAULT now(),
  updated_at     timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX endpoints_tenant ON endpoints (tenant_id, id);

CREATE TABLE endpoint_secrets (
  id          int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  endpoint_id int8 NOT NULL,
  sealed      bytea NOT NULL,                 -- version byte, id of the master key, nonce, ciphertext (shared::sealing)
  created_at  timestamptz NOT NULL DEFAULT now(),
  expires_at  timestamptz                     -- NULL: the current one; set by a rotation
);
CREATE INDEX endpoint_secrets_endpoint ON endpoint_secrets (endpoint_id);

CREATE TABLE event_types (
  id         int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id  int4 NOT NULL,
  name       text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (tenant_id, name)
);
