"""Workers and database: who does the work, and what it costs."""

from panels import UNOWNED_SLOTS, book, course, number, quantiles, row


def dashboard():
    return (
        book(
            "postrider-workers",
            "Postrider / Workers and database",
            "Who does the work, what it costs, and how the database stands.",
        )
        .with_panel(
            number(
                "Workers",
                "Processes that own slots.",
                'count(postrider_slots{state="owned"} > 0) or vector(0)',
                steps=("red", (1, "green")),
            )
        )
        .with_panel(
            number(
                "Slots without a worker",
                "What has no owner is not delivered.",
                UNOWNED_SLOTS,
                steps=("green", (1, "red")),
            )
        )
        .with_panel(
            number(
                "Declared dead, 1 h",
                "Workers that could not renew their lease, and began another life.",
                "sum(increase(postrider_lease_lost_total[1h]))",
                steps=("green", (1, "yellow"), (5, "red")),
                decimals=0,
            )
        )
        .with_panel(
            number(
                "Tasks restarted, 1 h",
                "Parts of a process that ended with an error and were started again.",
                "sum(increase(postrider_task_restarts_total[1h])) or vector(0)",
                steps=("green", (1, "yellow"), (5, "red")),
                decimals=0,
            )
        )
        .with_panel(
            number(
                "Oldest snapshot",
                "How far back the database's oldest transaction looks. VACUUM cannot clean what is younger, and every claim gets slower.",
                "max(postrider_database_horizon_seconds)",
                "s",
                ("green", (60, "yellow"), (300, "red")),
            )
        )
        .with_panel(
            number(
                "Versions",
                "More than one only while a new one is rolled out.",
                "count(count by (version) (postrider_build_info))",
                steps=("green", (2, "yellow")),
            )
        )
        .with_row(row("Workers"))
        .with_panel(
            course(
                "Attempts by worker",
                "A second. A worker that owns slots and makes none is stuck.",
                [("sum by (instance) (rate(postrider_attempts_total[$__rate_interval]))", "{{instance}}")],
                "reqps",
            )
        )
        .with_panel(
            course(
                "Slots by worker",
                "They spread evenly within seconds of a change.",
                [('sum by (instance) (postrider_slots{state="owned"})', "{{instance}}")],
                stacked=True,
            )
        )
        .with_panel(
            course(
                "CPU",
                "Cores used, by process.",
                [
                    (
                        "sum by (instance) (rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) postrider_build_info)",
                        "{{instance}}",
                    )
                ],
            )
        )
        .with_panel(
            course(
                "Memory",
                "Resident, by process.",
                [
                    (
                        "sum by (instance) (process_resident_memory_bytes and on (instance) postrider_build_info)",
                        "{{instance}}",
                    )
                ],
                "bytes",
            )
        )
        .with_row(row("Database"))
        .with_panel(
            course(
                "Recording a batch of outcomes",
                "One transaction. When it slows down, the workers slow down with it; while one waits, the others do.",
                [
                    *quantiles("postrider_record_seconds"),
                    ("max(postrider_record_lag_seconds)", "at hand"),
                ],
                "s",
            )
        )
        .with_panel(
            course(
                "Connections of the APIs' pools",
                "Requests that wait for one are the first sign of a slow database.",
                [('sum by (state) (postrider_db_pool{state!="max"})', "{{state}}")],
            )
        )
        .with_row(row("Network"))
        .with_panel(
            course(
                "Names looked up",
                "A second. Stale: the resolver is away and the last good answer is used.",
                [("sum by (result) (rate(postrider_dns_lookups_total[$__rate_interval]))", "{{result}}")],
                "ops",
            )
        )
        .with_panel(
            course(
                "Open files",
                "Of what a process may have, the share that it uses.",
                [
                    (
                        "sum by (instance) (process_open_fds / process_max_fds and on (instance) postrider_build_info)",
                        "{{instance}}",
                    )
                ],
                "percentunit",
            )
        )
    )
