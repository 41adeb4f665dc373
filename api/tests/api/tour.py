"""The tour of the README with a client that was generated from the served document: URL and key are arguments."""

import sys

from postrider_client import AuthenticatedClient
from postrider_client.api.deliveries import (
    cancel_delivery,
    get_delivery,
    list_attempts,
    list_deliveries,
    retry_delivery,
)
from postrider_client.api.endpoints import (
    change_endpoint,
    create_endpoint,
    delete_endpoint,
    disable_endpoint,
    enable_endpoint,
    get_endpoint,
    get_endpoint_health,
    list_endpoints,
    rotate_secret,
)
from postrider_client.api.events import (
    get_event,
    get_event_payload,
    list_event_deliveries,
    list_events,
    publish_event,
)
from postrider_client.models import DeliveryStatus, EndpointPatch, NewEndpoint, NewEvent, RotateSecret

URL = "https://receiver.example/hooks"


def expect(response, status):
    """What an answer with this status holds."""
    assert response.status_code == status, (response.status_code, response.content)
    return response.parsed


def publish(client):
    event = NewEvent.from_dict({"type": "invoice.paid", "payload": {"invoice": "INV-7", "total": 1.5}})
    return expect(publish_event.sync_detailed(client=client, body=event), 202)


def endpoints(client):
    new = {
        "url": URL,
        "event_types": ["invoice.*"],
        "backoff": {"base_seconds": 1, "max_seconds": 5},
        "max_attempts": 50,
        "breaker": {"cooldown_seconds": 5, "max_cooldown_seconds": 5},
    }
    made = create_endpoint.sync_detailed(client=client, body=NewEndpoint.from_dict(new))
    tag = made.headers["ETag"]
    made = expect(made, 201)
    assert made.secret.startswith("whsec_") and made.max_attempts == 50 and made.url == URL
    shown = expect(get_endpoint.sync_detailed(made.id, client=client), 200)
    assert shown.id == made.id and shown.breaker.cooldown_seconds == 5
    page = expect(list_endpoints.sync_detailed(client=client, limit=1), 200)
    assert [it.id for it in page.data] == [made.id] and page.next_cursor is None

    patch = EndpointPatch.from_dict({"rate_limit": {"per_second": 10, "burst": 20}})
    changed = change_endpoint.sync_detailed(made.id, client=client, body=patch, if_match=tag)
    assert expect(changed, 200).rate_limit.burst == 20
    late = change_endpoint.sync_detailed(made.id, client=client, body=patch, if_match=tag)
    assert expect(late, 412).type_.value == "urn:postrider:problem:precondition-failed"
    health = expect(get_endpoint_health.sync_detailed(made.id, client=client), 200)
    assert health.state.value == "closed"
    rotation = rotate_secret.sync_detailed(made.id, client=client, body=RotateSecret(overlap_seconds=60))
    assert expect(rotation, 200).secret != made.secret
    return made.id


def events(client, endpoint):
    published = publish(client)
    [made] = published.deliveries
    assert published.delivery_count == 1 and made.endpoint_id == endpoint and made.status.value == "pending"
    event = expect(get_event.sync_detailed(published.id, client=client), 200)
    assert event.type_ == "invoice.paid" and event.created_at == published.created_at
    payload = get_event_payload.sync_detailed(published.id, client=client)
    assert expect(payload, 200) == {"invoice": "INV-7", "total": 1.5}
    page = expect(list_event_deliveries.sync_detailed(published.id, client=client), 200)
    assert [it.id for it in page.data] == [made.id]

    delivery = expect(get_delivery.sync_detailed(made.id, client=client), 200)
    assert delivery.max_attempts == 50 and delivery.attempt_count == 0 and delivery.delivered_at is None
    assert expect(list_attempts.sync_detailed(made.id, client=client), 200).data == []
    assert expect(retry_delivery.sync_detailed(made.id, client=client), 202).id == made.id
    assert expect(cancel_delivery.sync_detailed(made.id, client=client), 200).status.value == "cancelled"
    again = expect(cancel_delivery.sync_detailed(made.id, client=client), 409)
    assert again.type_.value == "urn:postrider:problem:conflict" and "final" in again.detail


def pages(client):
    made = [publish(client).id for _ in range(3)]
    seen, cursor = [], None
    while True:
        further = {} if cursor is None else {"cursor": cursor}
        page = expect(list_events.sync_detailed(client=client, limit=2, **further), 200)
        seen += [event.id for event in page.data]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 4 and set(made) < set(seen), seen
    pending = list_deliveries.sync_detailed(client=client, status=DeliveryStatus.PENDING)
    assert len(expect(pending, 200).data) == 3


def main(url, key):
    stranger = AuthenticatedClient(base_url=url, token="prk_nobody")
    refused = expect(list_events.sync_detailed(client=stranger), 401)
    assert refused.type_.value == "urn:postrider:problem:unauthorized"

    with AuthenticatedClient(base_url=url, token=key) as client:
        wrong = create_endpoint.sync_detailed(
            client=client, body=NewEndpoint.from_dict({"url": "ftp://receiver.example/"})
        )
        assert expect(wrong, 422).errors[0].pointer == "/url"
        endpoint = endpoints(client)
        events(client, endpoint)
        pages(client)
        assert expect(disable_endpoint.sync_detailed(endpoint, client=client), 200).enabled is False
        assert expect(enable_endpoint.sync_detailed(endpoint, client=client), 200).enabled is True
        expect(delete_endpoint.sync_detailed(endpoint, client=client), 204)
        missing = expect(get_endpoint.sync_detailed(endpoint, client=client), 404)
        assert missing.type_.value == "urn:postrider:problem:not-found"


main(*sys.argv[1:])
