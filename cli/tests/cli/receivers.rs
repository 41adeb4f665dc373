//! `listen` and `verify`: what a receiver's developer tries first.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use shared::policy::signing::{Secret, sign_standard};
use shared::runtime::clock::wall_time;

use crate::running::{Running, postrider, run};

const BODY: &str = r#"{"id":1, "name":"Zoë"}"#;

fn signed(secret: &Secret, id: &str, at: i64) -> Vec<(&'static str, String)> {
    let secrets = std::slice::from_ref(secret);
    vec![
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", at.to_string()),
        (
            "webhook-signature",
            sign_standard(secrets, id, at, BODY.as_bytes()),
        ),
    ]
}

/// Posts the body; the status of the answer.
fn post(addr: &str, headers: &[(&str, String)]) -> String {
    let mut request =
        format!("POST /hooks/1?x=y HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str(&format!("Content-Length: {}\r\n\r\n{BODY}", BODY.len()));
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_whitespace().nth(1).unwrap().to_owned()
}

fn listen(args: &[&str]) -> (Running, String) {
    let running = Running::start(
        postrider(&[&["listen", "--port", "0"], args].concat()),
        &std::env::temp_dir(),
    );
    let note = running.notes(|line| line.starts_with("listening on http://"));
    let addr = note.split("http://").nth(1).unwrap();
    let addr = addr.split('/').next().unwrap().to_owned();
    (running, addr)
}

#[test]
fn a_delivery_is_verified_printed_and_answered() {
    let secret = Secret::generate([7; 32]);
    let text = secret.reveal();
    let args = [
        "--secret", &text, "--count", "3", "--status", "202", "--output", "json",
    ];
    let (mut running, addr) = listen(&args);
    let now = wall_time().unix_timestamp();

    let good = post(&addr, &signed(&secret, "evt_1", now));
    let forged = post(&addr, &signed(&Secret::generate([8; 32]), "evt_2", now));
    let repeated = post(&addr, &signed(&secret, "evt_1", now));

    assert_eq!(
        (good.as_str(), forged.as_str(), repeated.as_str()),
        ("202", "401", "202")
    );
    assert_eq!(running.ends().code(), Some(0), "{}", running.said());
    let lines: Vec<serde_json::Value> = running
        .printed()
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[0]["body"], BODY);
    assert_eq!(lines[0]["path"], "/hooks/1?x=y");
    assert_eq!(lines[0]["signature_valid"], true);
    assert_eq!(lines[1]["signature_valid"], false);
    assert_eq!(lines[0]["seen_before"], false);
    assert_eq!(lines[2]["seen_before"], true);
}

#[test]
fn people_see_the_headers_the_verdict_and_the_exact_body() {
    let secret = Secret::generate([7; 32]);
    let (mut running, addr) = listen(&["--secret", &secret.reveal()]);

    post(
        &addr,
        &signed(&secret, "evt_1", wall_time().unix_timestamp() - 4_000),
    );

    running.prints(|line| line.starts_with("webhook-id") && line.ends_with("evt_1"));
    running.prints(|line| line.contains("NOT VALID: the timestamp is too old"));
    running.prints(|line| line == BODY);
    running.ctrl_c();
    assert_eq!(running.ends().code(), Some(0), "{}", running.said());
}

#[test]
fn a_captured_request_is_verified_by_its_exact_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let secret = Secret::generate([7; 32]);
    let text = secret.reveal();
    let headers: String = signed(&secret, "evt_1", 1_764_450_000)
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let capture = format!("POST /hooks HTTP/1.1\r\nHost: example.com\r\n{headers}");
    std::fs::write(dir.path().join("headers.txt"), capture).unwrap();
    std::fs::write(dir.path().join("body.json"), BODY).unwrap();
    std::fs::write(dir.path().join("edited.json"), format!("{BODY}\n")).unwrap();
    let verify = |body: &str, at: &str| {
        let args = [
            "verify",
            "--secret",
            &text,
            "--headers",
            "headers.txt",
            "--at",
            at,
            body,
        ];
        run(postrider(&args).current_dir(dir.path()))
    };

    let good = verify("body.json", "1764450010").ended_with(0);
    assert_eq!(good.line(), "signature valid");
    let edited = verify("edited.json", "1764450010").ended_with(1);
    assert!(edited.stdout.contains("the body was changed"), "{edited:?}");
    let late = verify("body.json", "1764460000").ended_with(1);
    assert!(late.stdout.contains("too old"), "{late:?}");
    let missing = verify("absent.json", "1764450010").ended_with(2);
    assert!(
        missing.stderr.contains("absent.json cannot be read"),
        "{missing:?}"
    );
}

#[test]
fn a_port_that_is_taken_is_named_with_a_way_out() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();

    let said = run(&mut postrider(&["listen", "--port", &port])).ended_with(1);

    assert!(
        said.stderr.contains(&port) && said.stderr.contains("--port"),
        "{said:?}"
    );
}
