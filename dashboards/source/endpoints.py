"""Endpoints: which receivers are slow, broken or throttled."""

from panels import bars, book, course, note, number, quantiles, row

DRILL_DOWN = """\
Metrics have no label for tenants or endpoints but the 20 slowest: fifty thousand would be as many series. Of a single one:

**API** (its tenant's key, scope `read`)

```
GET /v1/endpoints/ep_…/health          percentiles, breaker, what it waits for
GET /v1/deliveries?endpoint_id=ep_…&status=dead_letter
GET /v1/dead-letters/analysis          what its dead letters have in common
GET /v1/stats/slow-endpoints?p95_threshold_ms=2000
```

**SQL** (a role that may read; on a replica if there is one)

```sql
-- Which breakers are open, since when, and when the next probe goes
SELECT e.id, e.public_id, e.tenant_id, r.opened_at, r.next_probe_at
FROM endpoint_runtime r JOIN endpoints e ON e.id = r.endpoint_id
WHERE r.breaker <> 0 ORDER BY r.opened_at DESC LIMIT 50;

-- The last hour of one endpoint's attempts (its endpoints.id instead of 1)
SELECT started_at, outcome, status, total_ms FROM attempts
WHERE endpoint_id = 1 AND started_at > now() - interval '1 hour'
ORDER BY started_at DESC LIMIT 100;
```
"""


def dashboard():
    return (
        book(
            "postrider-endpoints",
            "Postrider / Endpoints",
            "Which receivers are slow, broken or throttled, and how to look at one of them.",
        )
        .with_panel(
            number(
                "Slow endpoints",
                "Their P95 over 24 hours is above 2 s, with at least 20 attempts.",
                "max(postrider_slow_endpoints)",
                steps=("green", (1, "yellow"), (20, "orange")),
                width=6,
            )
        )
        .with_panel(
            number(
                "Open breakers",
                "Endpoints that get no requests but a probe from time to time.",
                'max(postrider_breaker_endpoints{state="open"})',
                steps=("green", (1, "yellow"), (50, "orange")),
                width=6,
            )
        )
        .with_panel(
            number(
                "On probation",
                "Breakers that are half open: the next request decides.",
                'max(postrider_breaker_endpoints{state="half_open"})',
                width=6,
            )
        )
        .with_panel(
            number(
                "P95 of an attempt",
                "Of all attempts, from DNS to the last byte.",
                'histogram_quantile(0.95, sum by (le) (rate(postrider_attempt_seconds_bucket{phase="total"}[$__rate_interval])))',
                "s",
                ("green", (1, "yellow"), (5, "orange")),
                width=6,
            )
        )
        .with_row(row("Slow"))
        .with_panel(
            bars(
                "The 20 slowest endpoints",
                "P95 over 24 hours of those with at least 20 attempts. The only place where an endpoint is a label.",
                "max by (endpoint) (postrider_endpoint_p95_seconds)",
                "{{endpoint}}",
                "s",
                ("green", (2, "yellow"), (5, "red")),
            )
        )
        .with_panel(note("One endpoint", DRILL_DOWN))
        .with_row(row("Time of an attempt"))
        .with_panel(
            course(
                "All attempts",
                "From DNS to the last byte, whatever came of it.",
                quantiles("postrider_attempt_seconds", '{phase="total"}'),
                "s",
            )
        )
        .with_panel(
            course(
                "P95 by phase",
                "Queue: from due to started. DNS, connect and TLS only where a connection was made. "
                "First byte: from the request to the reply's head.",
                [
                    (
                        "histogram_quantile(0.95, sum by (le, phase) (rate(postrider_attempt_seconds_bucket[$__rate_interval])))",
                        "{{phase}}",
                    )
                ],
                "s",
            )
        )
        .with_row(row("Broken"))
        .with_panel(
            course(
                "Breakers",
                "Endpoints by the state of their breaker, those that are not closed.",
                [('max by (state) (postrider_breaker_endpoints{state!="closed"})', "{{state}}")],
                stacked=True,
            )
        )
        .with_panel(
            course(
                "Changes of breakers",
                "By the new state. Many that open in the same minute have a cause in common.",
                [("sum by (to) (increase(postrider_breaker_transitions_total[5m]))", "{{to}}")],
            )
        )
        .with_row(row("Failing and waiting"))
        .with_panel(
            course(
                "Failed attempts",
                "By what came of them, a second.",
                [
                    (
                        'sum by (outcome) (rate(postrider_attempts_total{outcome!="delivered"}[$__rate_interval]))',
                        "{{outcome}}",
                    )
                ],
                "reqps",
                stacked=True,
            )
        )
        .with_panel(
            course(
                "Turns that had to wait",
                "An endpoint was due and could not send, a second, by reason.",
                [("sum by (reason) (rate(postrider_deferred_total[$__rate_interval]))", "{{reason}}")],
                "ops",
            )
        )
    )
