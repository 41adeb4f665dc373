-- A worker that drains gives up slots and takes none, but lives until its last request is recorded. Counted among those
-- who share the slots, it would keep the others from taking what it gave up.
ALTER TABLE workers ADD COLUMN draining bool NOT NULL DEFAULT false;
