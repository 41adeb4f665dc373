//! What an operation may be refused with, by what it takes: a key, an id, a body. An operation names these
//! parts, and its problems follow from them: one response for each status, with the legal `type`s.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use serde_json::json;
use utoipa::IntoResponses;
use utoipa::openapi::example::Example;
use utoipa::openapi::schema::{AllOf, Object, Ref, Type};
use utoipa::openapi::{ContentBuilder, RefOr, Response};

use crate::problem::Kind;

/// The refusals of an operation that takes these parts; 500 and 503 are any operation's.
pub(crate) struct Refused<Parts>(PhantomData<Parts>);

/// A part of a request that may be refused.
pub(crate) trait Part {
    const KINDS: &[Kind];
}

/// Several [`Part`]s.
pub(crate) trait Parts {
    fn kinds() -> Vec<Kind>;
}

macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident: $($kind:ident)+;)+) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name;

            impl Part for $name {
                const KINDS: &[Kind] = &[$(Kind::$kind),+];
            }
        )+
    };
}

parts! {
    /// A tenant's key, or an organization's and the header that names the tenant.
    Key: InvalidParameter Unauthorized MissingScope NotFound RateLimited TooManyFailures;
    /// An organization's key.
    OrganizationKey: Unauthorized MissingScope RateLimited TooManyFailures;
    /// The operator's token.
    AdminToken: Unauthorized AdminDisabled TooManyFailures;
    /// An id in the path.
    Id: InvalidParameter NotFound;
    /// A name in the path.
    File: NotFound;
    /// Parameters of the query.
    Query: InvalidParameter;
    /// A JSON object.
    Body: MalformedJson RequestTimeout PayloadTooLarge UnsupportedMediaType InvalidFields;
    /// A POST that happens once for each `Idempotency-Key`.
    Post: InvalidParameter RequestInProgress IdempotencyMismatch;
    /// The same for events, which wait for the first one.
    Once: InvalidParameter IdempotencyMismatch;
    /// `If-Match`.
    Version: InvalidParameter PreconditionFailed;
    /// A state that does not allow what is asked for.
    State: Conflict;
    /// What cannot be sent again.
    Replay: NotReplayable;
    /// A quota of events.
    Quota: QuotaReached;
    /// What was removed for good.
    Gone: Expunged;
    /// A limit of the tenant.
    Limit: LimitReached;
    /// What a text may hold and the database may not.
    Storage: NotStorable;
    /// The queue of events that wait to be stored.
    Queue: Overloaded;
}

/// Any operation may meet these.
const ALWAYS: [Kind; 2] = [Kind::Internal, Kind::Unavailable];

macro_rules! tuples {
    ($(($($name:ident)+))+) => {
        $(impl<$($name: Part),+> Parts for ($($name,)+) {
            fn kinds() -> Vec<Kind> {
                [$($name::KINDS),+].concat()
            }
        })+
    };
}

tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) }

impl Parts for () {
    fn kinds() -> Vec<Kind> {
        Vec::new()
    }
}

impl<P: Parts> IntoResponses for Refused<P> {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut by_status: BTreeMap<String, Vec<Kind>> = BTreeMap::new();
        for kind in P::kinds().into_iter().chain(ALWAYS) {
            let (status, ..) = kind.row();
            let kinds = by_status.entry(status.to_string()).or_default();
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        by_status
            .into_iter()
            .map(|(status, kinds)| (status, response(&kinds).into()))
            .collect()
    }
}

/// The response for kinds that share a status.
fn response(kinds: &[Kind]) -> Response {
    let describe = |kind: &Kind| {
        let (_, slug, title) = kind.row();
        format!("`{slug}`: {title}")
    };
    let description: Vec<String> = kinds.iter().map(describe).collect();
    let types = Object::builder()
        .schema_type(Type::String)
        .enum_values(Some(kinds.iter().map(|kind| kind.urn())));
    let typed = Object::builder()
        .schema_type(Type::Object)
        .property("type", types);
    let schema = AllOf::builder()
        .item(Ref::from_schema_name("Problem"))
        .item(typed);
    let content = ContentBuilder::new()
        .schema(Some(schema))
        .examples_from_iter(kinds.iter().map(example))
        .build();
    Response::builder()
        .description(description.join("; "))
        .content("application/problem+json", content)
        .build()
}

fn example(kind: &Kind) -> (&'static str, Example) {
    let (status, slug, title) = kind.row();
    let mut problem = json!({
        "type": kind.urn(), "title": title, "status": status, "detail": kind.example(),
    });
    if *kind == Kind::InvalidFields {
        let errors = json!([{"pointer": "/name", "detail": "is required"}]);
        problem = super::example::with(problem, "errors", errors);
    }
    let example = Example::builder().summary(title).value(Some(problem));
    (slug, example.build())
}
