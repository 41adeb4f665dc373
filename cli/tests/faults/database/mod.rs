//! What the database and the way to it may do: go away, change places, take no writes, say nothing, be full, or have
//! something in between that shares its sessions (A6 of the field reports).

mod away;
mod busy;
mod failover;
mod full;
mod growing;
mod half_open;
mod locks;
mod pooler;

use std::collections::HashSet;
use std::time::Duration;

use shared::ids::created_at;
use shared::runtime::clock::{boot_time, wall_time};
use shared::testing::eventually;
use uuid::Uuid;

use crate::poster::Poster;
use crate::process::PATIENCE;
use crate::world::{AtRisk, World, requests};

/// Waits until so many more are accepted.
async fn some_accepted(poster: &Poster, more: usize) {
    let accepted = poster.accepted();
    eventually(PATIENCE, || async {
        (poster.accepted() >= accepted + more).then_some(())
    })
    .await;
}

/// Waits until an event is delivered that was accepted after this call; how long that took.
async fn resumed(world: &World, within: Duration) -> Duration {
    let (now, began) = (wall_time(), boot_time());
    let arrived = || async {
        let all = world.receiver.all();
        all.iter()
            .any(|it| created_at(it.event) > now)
            .then_some(())
    };
    eventually(within, arrived).await;
    boot_time().since(began)
}

/// What was sent and is not recorded: may be repeated, once.
async fn put_at_risk(world: &World, at_risk: &mut AtRisk, recorded: &HashSet<Uuid>) {
    let mut sent = requests(&world.receiver.all());
    sent.retain(|delivery, _| !recorded.contains(delivery));
    at_risk.add(sent);
}

async fn recorded(world: &World) -> HashSet<Uuid> {
    let recorded = "SELECT delivery_id FROM attempts";
    let rows = world.sql().await.query(recorded, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
