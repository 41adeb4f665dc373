//! `postrider dev` from its first line to its last: a newcomer's first minutes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use shared::runtime::clock::boot_time;
use tempfile::TempDir;

use crate::running::{Running, postrider, run};

/// A folder that PostgreSQL's user can reach, when these tests run as root.
fn folder() -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn dev(dir: &Path, args: &[&str]) -> Running {
    Running::start(postrider(&[&["dev"], args].concat()), dir)
}

/// Waits until all is up; the curl line.
#[track_caller]
fn curl_line(running: &Running) -> String {
    running.prints(|line| line.starts_with("curl "))
}

/// Where the private PostgreSQL is.
fn cluster(running: &Running) -> PathBuf {
    let note = running.notes(|line| line.starts_with("PostgreSQL   up after"));
    PathBuf::from(note.split(", in ").nth(1).unwrap())
}

/// Processes that work in this cluster.
fn postgres_processes(cluster: &Path) -> Vec<String> {
    let data = cluster.join("data");
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| {
            std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&data))
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Does what a shell would do with the line; the answer's body. A machine without curl gets the same
/// request from us.
fn paste(line: &str) -> serde_json::Value {
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if has_curl {
        let said = run(Command::new("sh").args(["-c", line])).ended_with(0);
        return said.json();
    }
    let words = shell_words(line);
    let url = words
        .iter()
        .find(|word| word.starts_with("http://"))
        .unwrap();
    let (addr, path) = url.trim_start_matches("http://").split_once('/').unwrap();
    let after = |flag: &str| {
        let pairs = words.windows(2).filter(move |pair| pair[0] == flag);
        pairs.map(|pair| pair[1].clone()).collect::<Vec<_>>()
    };
    let body = after("-d").concat();
    let mut headers = after("-H");
    headers.push(format!("Content-Length: {}", body.len()));
    let request = format!(
        "POST /{path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{}\r\n\r\n{body}",
        headers.join("\r\n")
    );
    let mut stream = std::net::TcpStream::connect(addr).unwrap();
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Words as a shell splits them, with single quotes.
fn shell_words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words
}

#[test]
fn everything_comes_up_delivers_takes_a_pasted_event_and_stops_cleanly() {
    let dir = folder();
    let mut running = dev(dir.path(), &["--ephemeral"]);

    let curl = curl_line(&running);
    let printed = running.printed();
    assert_eq!(printed.last(), Some(&curl), "the curl line is the last one");
    let delivery = printed
        .iter()
        .position(|line| line.starts_with("webhook-id"))
        .unwrap();
    assert!(printed[delivery].contains("evt_"), "{printed:?}");
    assert!(
        printed
            .iter()
            .any(|line| line == "→ signature            valid"),
        "{printed:?}"
    );
    assert!(
        printed
            .iter()
            .any(|line| line.contains("\"total\":\"49.90\"")),
        "{printed:?}"
    );

    let accepted = paste(&curl);
    let id = accepted["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{accepted}"));
    assert_eq!(accepted["delivery_count"], 1, "{accepted}");
    running.prints(|line| line.starts_with("webhook-id") && line.ends_with(id));
    running.prints(|line| line.contains("\"total\":\"19.90\""));

    let cluster = cluster(&running);
    assert!(!postgres_processes(&cluster).is_empty());
    running.ctrl_c();
    assert_eq!(running.ends().code(), Some(0), "{}", running.said());
    assert_eq!(postgres_processes(&cluster), Vec::<String>::new());
    assert!(!cluster.exists(), "{} was not removed", cluster.display());
    assert!(
        !dir.path().join(".postrider").exists(),
        "an ephemeral run keeps nothing"
    );
}

#[test]
fn a_second_run_finds_what_the_first_one_kept() {
    let dir = folder();
    let mut first = dev(dir.path(), &[]);
    let curl = curl_line(&first);
    let key = |line: &str| {
        let token = line.split("Bearer ").nth(1).unwrap();
        token.split('\'').next().unwrap().to_owned()
    };
    first.ctrl_c();
    assert_eq!(first.ends().code(), Some(0), "{}", first.said());

    let began = boot_time();
    let mut second = dev(dir.path(), &[]);
    let again = curl_line(&second);
    let took = boot_time().since(began);

    assert_eq!(key(&curl), key(&again), "{}", second.said());
    // 5 s on an idle machine; others may be busy here.
    assert!(
        took < Duration::from_secs(20),
        "the second start took {took:?}"
    );
    let accepted = paste(&again);
    assert_eq!(
        accepted["delivery_count"], 1,
        "one demo endpoint: {accepted}"
    );
    let other = run(postrider(&["dev"]).current_dir(dir.path())).ended_with(1);
    assert!(
        other.stderr.contains(&second.pid().to_string()),
        "{other:?}"
    );
    second.ctrl_c();
    assert_eq!(second.ends().code(), Some(0), "{}", second.said());
}

#[test]
fn a_killed_run_does_not_stand_in_the_way_of_the_next() {
    let dir = folder();
    let mut first = dev(dir.path(), &[]);
    curl_line(&first);
    let pid = Pid::from_raw(i32::try_from(first.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    // Until then it holds its folder.
    assert_eq!(first.ends().code(), None);

    let mut second = dev(dir.path(), &[]);

    curl_line(&second);
    second.ctrl_c();
    assert_eq!(second.ends().code(), Some(0), "{}", second.said());
}

#[test]
fn two_at_once_in_two_folders_do_not_disturb_each_other() {
    let (one, two) = (folder(), folder());
    let mut first = dev(one.path(), &["--ephemeral"]);
    let mut second = dev(two.path(), &["--ephemeral"]);

    let (a, b) = (curl_line(&first), curl_line(&second));

    let url = |line: &str| {
        line.split(' ')
            .find(|word| word.starts_with("http"))
            .unwrap()
            .to_owned()
    };
    assert_ne!(url(&a), url(&b));
    let id = paste(&a)["id"].as_str().unwrap().to_owned();
    first.prints(|line| line.ends_with(&id));
    first.ctrl_c();
    assert_eq!(first.ends().code(), Some(0), "{}", first.said());
    let id = paste(&b)["id"].as_str().unwrap().to_owned();
    second.prints(|line| line.ends_with(&id));
    second.ctrl_c();
    assert_eq!(second.ends().code(), Some(0), "{}", second.said());
}

#[test]
fn it_can_be_stopped_while_it_starts_and_one_press_that_arrives_twice_is_one() {
    let dir = folder();
    let mut running = dev(dir.path(), &["--ephemeral"]);
    running.notes(|line| line.starts_with("PostgreSQL   starting"));

    running.ctrl_c();
    running.ctrl_c();

    assert_eq!(running.ends().code(), Some(0), "{}", running.said());
    running.notes(|line| line == "stopped");
}

#[test]
fn a_wrong_key_is_answered_with_how_to_get_a_right_one() {
    let dir = folder();
    let running = dev(dir.path(), &["--ephemeral", "--output", "json"]);
    let summary = running.prints(|line| line.contains("\"api_url\""));
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    let url = summary["api_url"].as_str().unwrap();
    let key = summary["key"].as_str().unwrap();
    let send = |key: &str, event_type: &str| {
        run(&mut postrider(&[
            "send",
            "--url",
            url,
            "--key",
            key,
            "--type",
            event_type,
            "{\"n\": 1.0}",
        ]))
    };

    let wrong = send("prk_wrong", "a.b").ended_with(1);
    assert!(wrong.stderr.contains("postrider key create"), "{wrong:?}");
    let bad = send(key, "no spaces").ended_with(1);
    assert!(bad.stderr.contains("/type"), "{bad:?}");
    let good = send(key, "a.b").ended_with(0);
    assert!(good.stdout.starts_with("accepted a.b evt_"), "{good:?}");
    running.prints(|line| line.contains(r#""body":"{\"n\": 1.0}""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_ones_own_is_used_when_it_is_named() {
    let database = shared::testing::TestDatabase::new().await;
    let dir = folder();
    let mut command = postrider(&["dev"]);
    command.env("DATABASE_URL", database.url());

    let mut running = Running::start(command, dir.path());

    curl_line(&running);
    assert!(!dir.path().join(".postrider/postgres").exists());
    running.ctrl_c();
    assert_eq!(running.ends().code(), Some(0), "{}", running.said());
    let events = database.session().await;
    let row = events
        .query_one("SELECT count(*) FROM events", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
}
