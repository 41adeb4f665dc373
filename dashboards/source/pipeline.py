"""Pipeline: is it healthy, at a glance? What came in, what went out, what waits and why."""

from panels import UNOWNED_SLOTS, book, course, number, quantiles, row

DELIVERED = 'sum(rate(postrider_attempts_total{outcome="delivered"}[$__rate_interval]))'
ATTEMPTS = "sum(rate(postrider_attempts_total[$__rate_interval]))"
ACCEPTED = "sum(rate(postrider_events_accepted_total[$__rate_interval]))"

# Gauges that the leader of a job counts for the whole installation: `max`, since in the moment of a
# change two workers may show them.
OLDEST_ADMISSIBLE = 'max(postrider_oldest_pending_seconds{reason="admissible"})'


def dashboard():
    return (
        book(
            "postrider-pipeline",
            "Postrider / Pipeline",
            "Is Postrider healthy? From accepted to delivered, and what waits in between.",
        )
        .with_panel(
            number(
                "Oldest that could be sent",
                "How long the oldest delivery waits that nothing holds back: no open breaker, no rate limit, no line, no pause. "
                "The one number to worry about.",
                OLDEST_ADMISSIBLE,
                "s",
                ("green", (60, "yellow"), (300, "orange"), (1_800, "red")),
            )
        )
        .with_panel(
            number("Accepted", "Events answered with 202, a second.", ACCEPTED, "reqps")
        )
        .with_panel(number("Delivered", "Deliveries that ended in a 2xx, a second.", DELIVERED, "reqps"))
        .with_panel(
            number(
                "Attempts that deliver",
                "The share of attempts that end in a 2xx. Receivers make it fall; all of them at once point to us.",
                f"{DELIVERED} / ({ATTEMPTS} > 0) or vector(1)",
                "percentunit",
                ("red", (0.5, "orange"), (0.9, "green")),
            )
        )
        .with_panel(
            number(
                "Internal dead letters",
                "Deliveries given up for a reason of our own that nobody replayed yet. Always zero, or somebody looks.",
                'max(postrider_dead_letters{class="internal"})',
                "short",
                ("green", (1, "red")),
            )
        )
        .with_panel(
            number(
                "Slots without a worker",
                "Endpoints belong to 256 slots, slots to workers. What has no owner is not delivered.",
                UNOWNED_SLOTS,
                "short",
                ("green", (1, "red")),
            )
        )
        .with_row(row("Flow"))
        .with_panel(
            course(
                "In and out",
                "Events accepted, attempts made and deliveries done, a second. Out is more than in where an event goes to several endpoints.",
                [(ACCEPTED, "accepted"), (ATTEMPTS, "attempts"), (DELIVERED, "delivered")],
                "reqps",
            )
        )
        .with_panel(
            course(
                "Attempts by outcome",
                "What came of the attempts, a second.",
                [("sum by (outcome) (rate(postrider_attempts_total[$__rate_interval])) > 0", "{{outcome}}")],
                "reqps",
                stacked=True,
            )
        )
        .with_row(row("Time"))
        .with_panel(
            course(
                "From accepted to received",
                "From the creation of a delivery to the receiver's 2xx, retries and waiting included.",
                quantiles("postrider_delivery_lag_seconds"),
                "s",
            )
        )
        .with_panel(
            course(
                "From request to commit",
                "How long a publisher waits for the 202: from the request's head to the commit of its event.",
                quantiles("postrider_ingest_seconds"),
                "s",
            )
        )
        .with_row(row("What waits"))
        .with_panel(
            course(
                "Deliveries that are not final",
                "By status, of all tenants. Pending waits for its first attempt, failed for another; those on the wire are among them.",
                [('max by (status) (postrider_deliveries{status=~"pending|failed|in_flight"})', "{{status}}")],
            )
        )
        .with_panel(
            course(
                "The oldest one, by what it waits for",
                "Admissible: for us. Breaker: the receiver is broken. Rate limited: the endpoint's own limit. Ordered: the one before it.",
                [("max by (reason) (postrider_oldest_pending_seconds)", "{{reason}}")],
                "s",
            )
        )
        .with_row(row("What was given up"))
        .with_panel(
            course(
                "Dead letters",
                "Not replayed yet, by class.",
                [("max by (class) (postrider_dead_letters)", "{{class}}")],
                stacked=True,
            )
        )
        .with_panel(
            course(
                "New dead letters in 15 minutes",
                "By class. A class that grows everywhere at once is ours; one endpoint's is its own.",
                [("sum by (class) (increase(postrider_dead_letters_total[15m]))", "{{class}}")],
                stacked=True,
            )
        )
    )
