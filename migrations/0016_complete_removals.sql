-- Removals: every delivery of an event is found by the event, deleted endpoints lose what is secret, and what is over is forgotten.

-- What recovery made of dead letters, as it is noted from now on: whoever expunges an event finds all that was made of it.
INSERT INTO replayed (tenant_id, delivery_id, endpoint_id, event_id, source_id)
SELECT tenant_id, replayed_as, endpoint_id, event_id, id FROM dead_letters WHERE replayed_as IS NOT NULL
ON CONFLICT DO NOTHING;

-- Expunging has other steps now. Whatever is under way begins again: what is done is found done.
UPDATE removals SET step = 0, after_id = '00000000-0000-0000-0000-000000000000' WHERE kind IN (3, 4) AND finished_at IS NULL;

-- Kind 5: what is secret of an endpoint that was deleted. First those that were deleted before there was this kind.
INSERT INTO removals (public_id, kind, tenant_id, organization_id, object_id)
SELECT gen_random_uuid(), 5, t.id, t.organization_id, e.public_id FROM endpoints e JOIN tenants t ON t.id = e.tenant_id
WHERE e.state = 3 AND t.deleted_at IS NULL;

CREATE INDEX removals_finished ON removals (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX event_counts_day ON event_counts (day);
