//! Every list of the API, with every filter.

use std::fmt;

use super::Shape;

/// Whose key asks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Who {
    /// The tenant that has four fifths of all rows.
    Large,
    /// One of the others.
    Small,
    /// The organization that all of them belong to.
    Organization,
    /// The same, of all its tenants at once.
    AllTenants,
    /// The operator.
    Admin,
}

/// A list, and who asks for it.
pub(super) struct Question {
    pub(super) who: Who,
    /// What stands in braces is filled in.
    pub(super) path: &'static str,
}

impl Question {
    pub(super) fn shape(&self) -> Shape {
        let path = self.path.split('?').next().unwrap_or_default();
        match path {
            "/v1/events"
            | "/v1/deliveries"
            | "/v1/dead-letters"
            | "/v1/audit-log"
            | "/v1/admin/audit-log" => Shape::Timed,
            "/v1/dead-letters/analysis" => Shape::Single,
            path if path.ends_with("/payload") => Shape::Single,
            _ => Shape::Whole,
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.who {
            Who::Large => "",
            Who::Small => ", a small tenant",
            Who::Organization => ", an organization",
            Who::AllTenants => ", all tenants",
            Who::Admin => ", the operator",
        };
        write!(out, "{}{who}", self.path)
    }
}

const fn large(path: &'static str) -> Question {
    Question {
        who: Who::Large,
        path,
    }
}

const fn of(who: Who, path: &'static str) -> Question {
    Question { who, path }
}

pub(super) const QUESTIONS: &[Question] = &[
    large("/v1/events"),
    large("/v1/events?type=order.created"),
    large("/v1/events?type=order.rare"),
    large("/v1/events?type=order.once"),
    large("/v1/events?external_id=order-0"),
    large("/v1/events?external_id=order-0&type=order.rare"),
    large("/v1/events?channel=vip"),
    large("/v1/events?channel=vip&type=order.created"),
    large("/v1/events/{event}/payload"),
    large("/v1/events/{event}/deliveries"),
    large("/v1/deliveries"),
    large("/v1/deliveries?status=pending"),
    large("/v1/deliveries?status=in_flight"),
    large("/v1/deliveries?status=delivered"),
    large("/v1/deliveries?status=failed"),
    large("/v1/deliveries?status=dead_letter"),
    large("/v1/deliveries?status=cancelled"),
    large("/v1/deliveries?status=skipped"),
    large("/v1/deliveries?endpoint_id={busy}"),
    large("/v1/deliveries?endpoint_id={silent}"),
    large("/v1/deliveries?endpoint_id={rare}"),
    large("/v1/deliveries?endpoint_id={other}"),
    large("/v1/deliveries?endpoint_id={busy}&status=delivered"),
    large("/v1/deliveries?endpoint_id={silent}&status=delivered"),
    large("/v1/deliveries?endpoint_id={rare}&status=delivered"),
    large("/v1/deliveries?endpoint_id={other}&status=pending"),
    large("/v1/deliveries?endpoint_id={other}&status=in_flight"),
    large("/v1/deliveries?endpoint_id={other}&status=failed"),
    large("/v1/deliveries?endpoint_id={rare}&status=failed"),
    large("/v1/deliveries?endpoint_id={other}&status=dead_letter"),
    large("/v1/deliveries?endpoint_id={other}&status=cancelled"),
    large("/v1/deliveries?endpoint_id={other}&status=skipped"),
    large("/v1/deliveries?event_type=order.created"),
    large("/v1/deliveries?event_type=order.rare"),
    large("/v1/deliveries?event_type=order.once"),
    large("/v1/deliveries?event_type=nobody.has"),
    large("/v1/deliveries?event_type=order.rare&status=delivered"),
    large("/v1/deliveries?event_type=order.rare&status=failed"),
    large("/v1/deliveries?event_type=order.rare&status=in_flight"),
    large("/v1/deliveries?event_type=order.rare&endpoint_id={busy}"),
    large("/v1/deliveries?event_type=order.created&endpoint_id={silent}&status=delivered"),
    large("/v1/deliveries/{delivery}/attempts"),
    large("/v1/dead-letters"),
    large("/v1/dead-letters?endpoint_id={other}"),
    large("/v1/dead-letters?endpoint_id={rare}"),
    large("/v1/dead-letters?class=transient"),
    large("/v1/dead-letters?class=internal"),
    large("/v1/dead-letters?event_type=order.created"),
    large("/v1/dead-letters?event_type=order.rare"),
    large("/v1/dead-letters?event_type=order.rare&endpoint_id={other}&class=internal"),
    large("/v1/dead-letters/analysis"),
    large("/v1/dead-letters/analysis?hours=720"),
    large("/v1/endpoints"),
    large("/v1/event-types"),
    large("/v1/replays"),
    large("/v1/audit-log"),
    large("/v1/audit-log?action=endpoint.updated"),
    large("/v1/audit-log?action=endpoint.deleted"),
    large("/v1/audit-log?object_id={object}"),
    of(Who::Small, "/v1/events"),
    of(Who::Small, "/v1/events?type=order.rare"),
    of(Who::Small, "/v1/deliveries"),
    of(Who::Small, "/v1/deliveries?status=cancelled"),
    of(Who::Small, "/v1/deliveries?endpoint_id={its}"),
    of(Who::Small, "/v1/deliveries?event_type=order.rare"),
    of(Who::Small, "/v1/dead-letters"),
    of(Who::Organization, "/v1/tenants"),
    of(Who::Organization, "/v1/tenants/{tenant}/keys"),
    of(Who::AllTenants, "/v1/events"),
    of(Who::AllTenants, "/v1/events?type=order.rare"),
    of(Who::AllTenants, "/v1/events?type=order.once"),
    of(Who::AllTenants, "/v1/deliveries"),
    of(Who::AllTenants, "/v1/deliveries?status=pending"),
    of(Who::AllTenants, "/v1/deliveries?status=in_flight"),
    of(Who::AllTenants, "/v1/deliveries?status=delivered"),
    of(Who::AllTenants, "/v1/deliveries?status=failed"),
    of(Who::AllTenants, "/v1/deliveries?status=dead_letter"),
    of(Who::AllTenants, "/v1/deliveries?status=cancelled"),
    of(Who::AllTenants, "/v1/deliveries?status=skipped"),
    of(Who::AllTenants, "/v1/endpoints"),
    of(Who::AllTenants, "/v1/audit-log"),
    of(Who::AllTenants, "/v1/audit-log?action=endpoint.deleted"),
    of(Who::Admin, "/v1/admin/organizations"),
    of(Who::Admin, "/v1/admin/tenants"),
    of(Who::Admin, "/v1/admin/tenants/{tenant}/keys"),
    of(Who::Admin, "/v1/admin/removals"),
    of(Who::Admin, "/v1/admin/audit-log"),
    of(Who::Admin, "/v1/admin/audit-log?action=endpoint.deleted"),
    of(
        Who::Admin,
        "/v1/admin/audit-log?tenant_id={tenant}&object_id={object}",
    ),
];
