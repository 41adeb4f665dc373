//! What a scenario has to reach (floor), should (target) and could (stretch): architecture §10, and
//! for a held snapshot issue 7. The only place where these figures are.

use serde::Serialize;

/// One figure of one scenario. Where the floor is below the stretch, more is better.
#[derive(Debug, Clone, Copy)]
pub(in crate::run) struct Aim {
    scenario: &'static str,
    pub(in crate::run) what: &'static str,
    pub(in crate::run) figure: Figure,
    unit: &'static str,
    floor: f64,
    target: f64,
    stretch: f64,
}

/// Where in a result it stands.
#[derive(Debug, Clone, Copy)]
pub(in crate::run) enum Figure {
    Throughput,
    P50,
    P99,
    WalPerDelivery,
    Detail(&'static str),
}

/// How far a scenario came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::run) enum Level {
    /// Not even the floor, or not measured.
    None,
    Floor,
    Target,
    Stretch,
}

/// An aim beside what was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(in crate::run) struct Reached {
    pub(in crate::run) what: &'static str,
    pub(in crate::run) unit: &'static str,
    pub(in crate::run) floor: f64,
    pub(in crate::run) target: f64,
    pub(in crate::run) stretch: f64,
    pub(in crate::run) measured: Option<f64>,
    pub(in crate::run) reached: Level,
}

const fn rate(scenario: &'static str, figure: Figure, [floor, target, stretch]: [f64; 3]) -> Aim {
    let unit = match figure {
        Figure::Detail(_) => "events/s",
        Figure::Throughput | Figure::P50 | Figure::P99 | Figure::WalPerDelivery => "deliveries/s",
    };
    let what = "sustained";
    aim(scenario, (what, unit), figure, [floor, target, stretch])
}

const fn aim(
    scenario: &'static str,
    (what, unit): (&'static str, &'static str),
    figure: Figure,
    [floor, target, stretch]: [f64; 3],
) -> Aim {
    Aim {
        scenario,
        what,
        figure,
        unit,
        floor,
        target,
        stretch,
    }
}

const ACCEPTED: Figure = Figure::Detail("accepted_per_second");

const AIMS: &[Aim] = &[
    rate("fanout-1", Figure::Throughput, [5e3, 8e3, 11e3]),
    aim(
        "fanout-1",
        ("WAL per delivery", "bytes"),
        Figure::WalPerDelivery,
        [2_200.0, 1_800.0, 1_600.0],
    ),
    rate("fanout-10", Figure::Throughput, [8e3, 13e3, 17e3]),
    rate("drain", Figure::Throughput, [8e3, 15e3, 20e3]),
    rate("ingest-single", ACCEPTED, [10e3, 20e3, 28e3]),
    rate("ingest-batch", ACCEPTED, [30e3, 60e3, 90e3]),
    rate("failures-10pct", Figure::Throughput, [4e3, 7e3, 10e3]),
    aim("latency-200", ("p50", "ms"), Figure::P50, [10.0, 2.3, 1.5]),
    aim("latency-200", ("p99", "ms"), Figure::P99, [40.0, 6.0, 4.0]),
    aim("latency-1000", ("p50", "ms"), Figure::P50, [20.0, 5.0, 3.0]),
    aim(
        "latency-1000",
        ("p99", "ms"),
        Figure::P99,
        [80.0, 25.0, 12.0],
    ),
    aim(
        "slow-endpoints",
        ("p99 of the healthy", "× its baseline"),
        Figure::Detail("ratio"),
        [3.0, 1.5, 1.1],
    ),
    aim(
        "memory",
        ("peak resident memory of the worker", "MB"),
        Figure::Detail("worker_peak_mb"),
        [512.0, 256.0, 128.0],
    ),
    aim(
        "kill-gap",
        ("longest gap on the slots of the killed", "s"),
        Figure::Detail("gap_seconds"),
        [15.0, 11.0, 6.0],
    ),
    aim(
        "growth-snapshot",
        ("throughput that a held snapshot costs", "%"),
        Figure::Detail("loss_percent"),
        [20.0, 5.0, 0.0],
    ),
];

/// The aims of a scenario.
pub(in crate::run) fn of(scenario: &str) -> impl Iterator<Item = &'static Aim> {
    AIMS.iter().filter(move |aim| aim.scenario == scenario)
}

impl Aim {
    /// Puts it beside what was measured.
    pub(in crate::run) fn beside(&self, measured: Option<f64>) -> Reached {
        let measured = measured.map(|it| (it * 1e3).round() / 1e3);
        let steps = [
            (self.stretch, Level::Stretch),
            (self.target, Level::Target),
            (self.floor, Level::Floor),
        ];
        let good = |step: f64, it: f64| {
            if self.more_is_better() {
                it >= step
            } else {
                it <= step
            }
        };
        let level = |it: f64| steps.into_iter().find(|(step, _)| good(*step, it));
        let reached = measured.and_then(level);
        Reached {
            what: self.what,
            unit: self.unit,
            floor: self.floor,
            target: self.target,
            stretch: self.stretch,
            measured,
            reached: reached.map_or(Level::None, |(_, level)| level),
        }
    }

    fn more_is_better(&self) -> bool {
        self.floor < self.stretch
    }
}

impl Reached {
    /// Below the floor.
    pub(in crate::run) fn fault(&self) -> Option<String> {
        let measured = self.measured.map(|it| it.to_string());
        let measured = measured.as_deref().unwrap_or("not measured");
        let Self {
            what, unit, floor, ..
        } = self;
        (self.reached == Level::None)
            .then(|| format!("{what}: {measured} {unit}, below the floor of {floor}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::all;
    use super::*;

    #[test]
    fn more_or_less_is_better_as_the_figures_say() {
        let rate = rate("x", Figure::Throughput, [5.0, 8.0, 11.0]);
        let latency = aim("x", ("p99", "ms"), Figure::P99, [40.0, 6.0, 4.0]);
        let reached = |aim: &Aim, it| aim.beside(Some(it)).reached;

        let rates = [4.9, 5.0, 8.0, 10.9, 11.0].map(|it| reached(&rate, it));
        assert_eq!(
            rates,
            [
                Level::None,
                Level::Floor,
                Level::Target,
                Level::Target,
                Level::Stretch
            ]
        );
        let latencies = [40.1, 40.0, 6.0, 4.0].map(|it| reached(&latency, it));
        assert_eq!(
            latencies,
            [Level::None, Level::Floor, Level::Target, Level::Stretch]
        );
        assert_eq!(latency.beside(None).reached, Level::None);
    }

    #[test]
    fn what_stays_below_the_floor_is_a_fault() {
        let latency = aim("x", ("p99", "ms"), Figure::P99, [40.0, 6.0, 4.0]);
        let fault = |it| latency.beside(it).fault();

        let below = "p99: 41 ms, below the floor of 40";
        assert_eq!(fault(Some(41.0)).as_deref(), Some(below));
        assert_eq!(fault(Some(40.0)), None);
        assert!(fault(None).is_some());
    }

    #[test]
    fn every_aim_is_of_a_scenario_and_gets_harder() {
        let scenarios = all();
        for aim in AIMS {
            let known = scenarios.iter().any(|it| it.name == aim.scenario);
            assert!(known, "{}", aim.scenario);
            let steps = [aim.floor, aim.target, aim.stretch];
            let descending = steps.into_iter().rev();
            let ordered = steps.is_sorted() || descending.is_sorted();
            assert!(ordered && aim.floor != aim.stretch, "{aim:?}");
        }
    }
}
