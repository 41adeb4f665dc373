-- A kept reply that repeats what a receiver answered (of a test) has the test's event in `event_id`: whoever expunges the event
-- finds it. Keys of events have no reply, so nothing is added to ingest.
CREATE INDEX idempotency_keys_reply ON idempotency_keys (tenant_id, event_id) WHERE reply IS NOT NULL;
