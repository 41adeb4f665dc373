-- Where an event stands in its publisher's trace: 16 bytes of trace id, 8 of span id, one of flags. Nullable without default: neither
-- the table nor its partitions are rewritten, and a row without it is no larger: it has a bitmap of NULLs already, with room in it.
ALTER TABLE events ADD trace_context bytea;
ALTER TABLE events_kept ADD trace_context bytea;
