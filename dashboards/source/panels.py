"""Panels as we use them, so that a dashboard reads as a list of questions and their queries."""

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    text,
    timeseries,
)
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    Threshold,
    ThresholdsMode,
)

# Grafana's grid is 24 columns wide.
WIDTH = 24

# Who answers for the installation: each worker sees it, and none is there to see that none is there.
UNOWNED_SLOTS = 'max(postrider_slots{state="unowned"}) or vector(256)'

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


def book(uid, title, description):
    """A dashboard; `uid` is its address, so it never changes."""
    source = (
        dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    )
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["postrider"])
        .time("now-3h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(1)
        .with_variable(source)
        .link(dashboard.DashboardLink("Postrider").type("dashboards").tags(["postrider"]))
    )


def query(expr, legend="", letter="A", instant=False):
    """A query; its legend names labels in double braces, its letter tells it from the panel's others."""
    built = prometheus.Dataquery().datasource(DATASOURCE).expr(expr).legend_format(legend).ref_id(letter)
    return built.instant() if instant else built.range()


def levels(*steps):
    """Thresholds: the first colour from the bottom, each other from its value up."""
    first, *others = steps
    built = [Threshold(value=None, color=first)]
    built += [Threshold(value=float(value), color=color) for value, color in others]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(built)


def number(title, about, expr, unit="short", steps=("green",), width=4, decimals=None):
    """One figure, as of now, with its recent course behind it."""
    panel = (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(DATASOURCE)
        .unit(unit)
        .thresholds(levels(*steps))
        .color_mode(BigValueColorMode.BACKGROUND if len(steps) > 1 else BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .span(width)
        .height(4)
        .with_target(query(expr))
    )
    return panel if decimals is None else panel.decimals(decimals)


def course(title, about, queries, unit="short", width=12, stacked=False):
    """How something went over time: (query, legend) pairs."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(DATASOURCE)
        .unit(unit)
        .min(0)
        .fill_opacity(30 if stacked else 8)
        .line_width(1)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.RIGHT)
            .calcs(["lastNotNull", "max"])
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .span(width)
        .height(8)
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for letter, (expr, legend) in zip("ABCDEF", queries, strict=False):
        panel = panel.with_target(query(expr, legend, letter))
    return panel


def bars(title, about, expr, legend, unit, steps, width=12):
    """The current values next to each other, the largest first."""
    return (
        bargauge.Panel()
        .title(title)
        .description(about)
        .datasource(DATASOURCE)
        .unit(unit)
        .min(0)
        .thresholds(levels(*steps))
        .orientation("horizontal")
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .span(width)
        .height(12)
        .with_target(query(f"sort_desc({expr})", legend, instant=True))
    )


def note(title, words, width=12, height=12):
    """Words, as Markdown."""
    return text.Panel().title(title).mode("markdown").content(words).span(width).height(height)


def quantiles(metric, matching=""):
    """P50, P95 and P99 of a histogram in seconds, of the series that match."""
    rate = f"sum by (le) (rate({metric}_bucket{matching}[$__rate_interval]))"
    return [(f"histogram_quantile({share}, {rate})", f"P{round(share * 100)}") for share in (0.5, 0.95, 0.99)]


def row(title):
    return dashboard.Row(title)
