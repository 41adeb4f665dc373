//! The checker: compares what was acknowledged, what was received, and what the database says.

use std::collections::{HashMap, HashSet};

use shared::runtime::clock::boot_time;
use shared::testing::eventually;
use uuid::Uuid;

use crate::process::PATIENCE;
use crate::world::{AtRisk, World, requests};

/// What became of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Acknowledged and never received.
    pub(crate) lost: usize,
    /// Still live when nothing should be.
    pub(crate) stuck: usize,
    misplaced: i64,
    ended_twice: i64,
}

impl Found {
    /// Nothing of so many acknowledged events is amiss.
    #[track_caller]
    pub(crate) fn is_well(self, accepted: usize) {
        let Self {
            lost,
            stuck,
            misplaced,
            ended_twice,
        } = self;
        assert_eq!(
            (lost, stuck, misplaced, ended_twice),
            (0, 0, 0, 0),
            "lost, stuck, misplaced, ended twice; of {accepted} acknowledged events"
        );
    }
}

impl World {
    /// Waits until nothing is left to do, and checks that every acknowledged event was received and
    /// that every delivery ended exactly once.
    pub(crate) async fn finished(&self, accepted: &[Uuid]) {
        self.found(accepted).await.is_well(accepted.len());
    }

    /// Waits until nothing is left to do, or not much longer than anything may take; then compares what
    /// was acknowledged, what was received, and what the database says.
    pub(crate) async fn found(&self, accepted: &[Uuid]) -> Found {
        let sql = self.sql().await;
        let live = "SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM retry) + (SELECT count(*) FROM ready_ordered)";
        let began = boot_time();
        let stuck = eventually(PATIENCE * 2, || async {
            let count: i64 = sql.query_one(live, &[]).await.unwrap().get(0);
            (count == 0 || boot_time().since(began) > PATIENCE).then_some(count)
        })
        .await;
        let received: HashSet<Uuid> = self.receiver.all().iter().map(|it| it.event).collect();
        let lost = accepted.iter().filter(|it| !received.contains(it)).count();
        let (misplaced, ended_twice) = (self.misplaced().await, self.ended_twice().await);
        self.each_delivery_of_one_event();
        Found {
            lost,
            stuck: usize::try_from(stuck).unwrap(),
            misplaced,
            ended_twice,
        }
    }

    /// Every delivery is waiting, delivered, dead or closed, and exactly one of these (D6, D8, F88); a
    /// final status stands on one attempt only, and on none of a fenced worker (D3).
    pub(crate) async fn each_delivery_in_one_place(&self) {
        let places = (self.misplaced().await, self.ended_twice().await);
        assert_eq!(places, (0, 0), "deliveries misplaced, or ended twice");
    }

    /// How many deliveries are not in exactly one place.
    async fn misplaced(&self) -> i64 {
        let misplaced = "
            WITH d AS (SELECT unnest(fan_delivery) AS id FROM events),
            p AS (
              SELECT id FROM ready UNION ALL SELECT id FROM retry UNION ALL SELECT id FROM ready_ordered UNION ALL SELECT id FROM closed
              UNION ALL SELECT id FROM dead_letters
              UNION ALL SELECT delivery_id FROM attempts WHERE final_status = 3)
            SELECT count(*) FROM (
              SELECT d.id FROM d LEFT JOIN p ON p.id = d.id GROUP BY d.id HAVING count(p.id) <> 1) x";
        self.count(misplaced).await
    }

    /// How many deliveries ended more than once, or by a fenced worker.
    async fn ended_twice(&self) -> i64 {
        let ended_twice =
            "SELECT count(*) FROM (SELECT FROM attempts WHERE final_status IS NOT NULL
            GROUP BY tenant_id, delivery_id HAVING count(*) > 1 OR NOT bool_and(applied)) x";
        self.count(ended_twice).await
    }

    /// A repeated request carries the same `webhook-id`, by which receivers know it again.
    fn each_delivery_of_one_event(&self) {
        let mut events = HashMap::new();
        for arrival in self.receiver.all() {
            let event = *events.entry(arrival.delivery).or_insert(arrival.event);
            assert_eq!(
                event, arrival.event,
                "two webhook-ids for {}",
                arrival.delivery
            );
        }
    }

    /// What was sent and is live as if it had not been; no worker may be at work.
    pub(crate) async fn at_risk(&self) -> AtRisk {
        let live = "SELECT id FROM ready UNION ALL SELECT id FROM retry UNION ALL SELECT id FROM ready_ordered";
        let rows = self.sql().await.query(live, &[]).await.unwrap();
        let live: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        let mut sent = requests(&self.receiver.all());
        sent.retain(|delivery, _| live.contains(delivery));
        let mut at_risk = AtRisk::default();
        at_risk.add(sent);
        at_risk
    }
}
