//! Phases of equal length under one load that goes on through all of them, so that each is measured
//! beside the one before it.

use std::ops::Range;
use std::sync::Arc;

use crate::generator::{Generator, Plan};
use crate::run::stage::{Stage, nanos, until};

pub(super) struct Phases {
    generator: Arc<Generator>,
    length_ns: u64,
}

impl Phases {
    /// So many phases of the scenario's length each, after its warm-up: the first begins that long
    /// from now. `load` says the rest.
    pub(super) fn new(stage: &Stage<'_>, load: Plan, phases: u32) -> Self {
        let generator = Generator::new(Plan {
            warmup: stage.warmup(),
            measured: stage.length().saturating_mul(phases),
            ..load
        });
        Self {
            generator,
            length_ns: nanos(stage.length()),
        }
    }

    /// When a phase begins and ends, from 0; boot-clock nanoseconds.
    pub(super) fn phase(&self, number: u64) -> Range<u64> {
        let start = self.generator.window().start + self.length_ns * number;
        start..start + self.length_ns
    }

    /// Loads the system from now to the end of the last phase, and does `script` from the beginning of
    /// the first: together they are the measured window.
    pub(super) async fn play(
        self,
        stage: &mut Stage<'_>,
        script: impl AsyncFnOnce(&mut Stage<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let window = self.generator.window();
        let running = async {
            self.generator.run().await;
            anyhow::Ok(())
        };
        let scripted = async {
            until(window.start).await;
            stage.begin(window.end).await?;
            script(stage).await?;
            until(window.end).await;
            stage.end().await
        };
        tokio::try_join!(running, scripted)?;
        stage.took(&self.generator);
        Ok(())
    }
}
