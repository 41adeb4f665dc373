-- Every address that one attempt dialled, where it was more than one; `addr` says which was sent to. Nullable without
-- default: neither the table nor its partitions are rewritten.
ALTER TABLE attempts ADD dialled inet[];
