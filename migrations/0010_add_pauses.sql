-- What an operator holds back for a while: a tenant's deliveries, those of a type of event, or both.
-- What waits by its type lies in its own table under a negative slot (slot - 256), where no owner looks.
CREATE TABLE pauses (
  id         int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id  int4,                            -- NULL: every tenant
  event_type text,                            -- a type, or a prefix like `order.*`; NULL: every type
  until      timestamptz NOT NULL,            -- it always ends, also when nobody looks again
  reason     text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  CHECK (tenant_id IS NOT NULL OR event_type IS NOT NULL)
);
CREATE UNIQUE INDEX pauses_what ON pauses (coalesce(tenant_id, 0), coalesce(event_type, ''));
