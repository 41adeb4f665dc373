//! The embedded PostgreSQL: what a killed run leaves behind, two at once, root, and the test helpers
//! that stand on it. Each test has a cluster of its own.

#![cfg(feature = "testing")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the helpers of tests fail the test"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use shared::embedded_postgres::{EmbeddedError, EmbeddedPostgres, Options, SUPERUSER, Shutdown};
use shared::store::{Database, Role};
use shared::testing::{TestCluster, TestDatabase, eventually};

/// Names the directory in which [`holds_a_cluster_until_it_is_killed`] starts a cluster.
const HOLD: &str = "POSTRIDER_TEST_HOLD_CLUSTER";
const DEADLINE: Duration = Duration::from_secs(30);

/// A kept cluster without the waiting for the disk.
fn kept(dir: &Path) -> Options {
    Options {
        durable: false,
        ..Options::kept(dir)
    }
}

fn runs(pid: u32) -> bool {
    // A process that has ended and that nobody has waited for yet no longer has a working directory.
    std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok()
}

async fn gone(pid: u32) {
    eventually(DEADLINE, || async { (!runs(pid)).then_some(()) }).await;
}

async fn answers(postgres: &EmbeddedPostgres) {
    let database = Database::new(&postgres.url(SUPERUSER)).unwrap();
    let session = database.connect(Role::Api).await.unwrap();
    let row = session.query_one("SELECT 1", &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 1);
}

/// This test binary again, as a process that starts a cluster and waits to be killed.
struct Holder {
    process: Child,
    dir: PathBuf,
}

impl Holder {
    async fn start(dir: &Path) -> Self {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "holds_a_cluster_until_it_is_killed"])
            .env(HOLD, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let ready = dir.join("ready");
        eventually(DEADLINE, || async { ready.exists().then_some(()) }).await;
        Self {
            process,
            dir: dir.to_owned(),
        }
    }

    fn cluster(&self) -> PathBuf {
        std::fs::read_to_string(self.dir.join("ready"))
            .unwrap()
            .into()
    }

    fn postmaster(&self) -> u32 {
        let file = self.cluster().join("data/postmaster.pid");
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().next().unwrap().parse().unwrap()
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _already_dead = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Not a test by itself: the body of [`Holder`]'s process. Without its variable it has nothing to do.
#[tokio::test]
async fn holds_a_cluster_until_it_is_killed() {
    let Some(dir) = std::env::var_os(HOLD).map(PathBuf::from) else {
        return;
    };
    let postgres = EmbeddedPostgres::start(kept(&dir.join("cluster")))
        .await
        .unwrap();
    let ready = dir.join("ready.tmp");
    std::fs::write(&ready, postgres.data_dir().to_str().unwrap()).unwrap();
    std::fs::rename(&ready, dir.join("ready")).unwrap();
    std::future::pending::<()>().await;
}

/// A directory that the server's user can reach, whoever runs the tests.
fn test_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    dir
}

#[tokio::test]
async fn a_kept_cluster_keeps_its_data_between_runs() {
    let dir = test_dir();
    let cluster = dir.path().join("cluster");

    let first = EmbeddedPostgres::start(kept(&cluster)).await.unwrap();
    let database = Database::new(&first.url(SUPERUSER)).unwrap();
    let session = database.connect(Role::Api).await.unwrap();
    session
        .batch_execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)")
        .await
        .unwrap();
    drop(session);
    first.stop().await.unwrap();
    let second = EmbeddedPostgres::start(kept(&cluster)).await.unwrap();

    let database = Database::new(&second.url(SUPERUSER)).unwrap();
    let session = database.connect(Role::Api).await.unwrap();
    let row = session.query_one("SELECT n FROM kept", &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 7);
    second.stop().await.unwrap();
}

#[tokio::test]
async fn a_throw_away_cluster_leaves_nothing_behind() {
    let postgres = EmbeddedPostgres::start(Options::throw_away())
        .await
        .unwrap();
    let (dir, pid) = (postgres.data_dir().to_owned(), postgres.pid().unwrap());
    answers(&postgres).await;

    drop(postgres);

    gone(pid).await;
    eventually(DEADLINE, || async { (!dir.exists()).then_some(()) }).await;
}

#[tokio::test]
async fn an_abandoned_throw_away_cluster_is_removed_by_a_later_start() {
    let abandoned = tempfile::Builder::new()
        .prefix("postrider-cluster-")
        .tempdir()
        .unwrap();
    std::fs::write(abandoned.path().join("lock"), "1").unwrap();
    let two_hours_ago = std::time::SystemTime::from(shared::runtime::clock::wall_time())
        - Duration::from_secs(7200);
    let dir = std::fs::File::open(abandoned.path()).unwrap();
    dir.set_modified(two_hours_ago).unwrap();

    let postgres = EmbeddedPostgres::start(Options::throw_away())
        .await
        .unwrap();

    assert!(!abandoned.path().exists());
    assert!(postgres.data_dir().exists());
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn the_server_ends_when_its_starter_is_killed_and_the_next_run_recovers() {
    let dir = test_dir();
    let mut holder = Holder::start(dir.path()).await;
    let (cluster, pid) = (holder.cluster(), holder.postmaster());

    holder.kill();
    let next = EmbeddedPostgres::start(kept(&cluster)).await.unwrap();

    assert_ne!(next.pid(), Some(pid));
    assert!(!runs(pid));
    answers(&next).await;
    next.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_that_nobody_watches_any_more_is_stopped_and_started_again() {
    let dir = test_dir();
    let mut holder = Holder::start(dir.path()).await;
    let (cluster, pid) = (holder.cluster(), holder.postmaster());
    let shell = parent(pid);

    kill("KILL", shell);
    gone(shell).await;
    holder.kill();
    assert!(runs(pid), "this test needs an orphan");
    let next = EmbeddedPostgres::start(kept(&cluster)).await.unwrap();

    assert!(!runs(pid));
    answers(&next).await;
    next.stop().await.unwrap();
}

#[tokio::test]
async fn a_stale_pid_file_with_the_number_of_a_living_process_is_no_obstacle() {
    let dir = test_dir();
    let cluster = dir.path().join("cluster");
    let first = EmbeddedPostgres::start(kept(&cluster)).await.unwrap();
    let pid_file = first.data_dir().join("data/postmaster.pid");
    let text = std::fs::read_to_string(&pid_file).unwrap();
    let stale = text.replacen(&first.pid().unwrap().to_string(), "1", 1);
    first.stop().await.unwrap();
    std::fs::write(&pid_file, stale).unwrap();

    let next = EmbeddedPostgres::start(kept(&cluster)).await.unwrap();

    answers(&next).await;
    next.stop().await.unwrap();
}

#[tokio::test]
async fn a_half_made_cluster_is_made_anew() {
    let dir = test_dir();
    let cluster = dir.path().join("cluster");
    std::fs::create_dir_all(cluster.join("data.tmp/base")).unwrap();
    std::fs::write(cluster.join("data.tmp/PG_VERSION"), "15\n").unwrap();

    let postgres = EmbeddedPostgres::start(kept(&cluster)).await.unwrap();

    assert!(!postgres.data_dir().join("data.tmp").exists());
    answers(&postgres).await;
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn the_second_of_two_at_once_is_told_who_the_first_is() {
    let dir = test_dir();
    let holder = Holder::start(dir.path()).await;

    let error = EmbeddedPostgres::start(kept(&holder.cluster()))
        .await
        .unwrap_err();

    assert!(matches!(error, EmbeddedError::InUse { .. }), "{error}");
    let pid = holder.process.id().to_string();
    assert!(error.to_string().contains(&pid), "{error}");
    assert!(runs(holder.postmaster()), "the first one goes on");
}

#[tokio::test]
async fn the_server_does_not_run_as_root_and_not_in_our_process_group() {
    let postgres = EmbeddedPostgres::start(Options::throw_away())
        .await
        .unwrap();
    let pid = postgres.pid().unwrap();

    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let uids = status
        .lines()
        .find(|line| line.starts_with("Uid:"))
        .unwrap();
    assert!(!uids.split_whitespace().any(|uid| uid == "0"), "{uids}");
    assert_ne!(process_group(pid), process_group(std::process::id()));
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn a_directory_that_the_servers_user_cannot_reach_is_replaced_by_one_that_it_can() {
    let dir = tempfile::tempdir().unwrap(); // 0700
    let cluster = dir.path().join("cluster");

    let postgres = EmbeddedPostgres::start(kept(&cluster)).await.unwrap();

    answers(&postgres).await;
    let moved = postgres.data_dir().to_owned();
    postgres.stop().await.unwrap();
    if moved != cluster {
        assert!(
            moved.starts_with("/var/lib/postrider"),
            "{}",
            moved.display()
        );
        std::fs::remove_dir_all(moved).unwrap();
    }
}

#[tokio::test]
async fn a_long_path_and_odd_characters_get_a_socket_elsewhere() {
    let dir = test_dir();
    let cluster = dir
        .path()
        .join(format!("mit Leerzeichen & ü {}", "x".repeat(100)));

    let postgres = EmbeddedPostgres::start(kept(&cluster)).await.unwrap();

    answers(&postgres).await;
    let socket = postgres.socket_dir().to_owned();
    assert!(!socket.starts_with(&cluster));
    postgres.stop().await.unwrap();
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_cluster_of_another_version_is_refused_with_its_number() {
    let dir = test_dir();
    let data = dir.path().join("cluster/data");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("PG_VERSION"), "9\n").unwrap();

    let error = EmbeddedPostgres::start(kept(&dir.path().join("cluster")))
        .await
        .unwrap_err();

    assert!(error.to_string().contains("PostgreSQL 9"), "{error}");
    assert!(data.exists(), "nobody's data is removed");
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let options = Options {
        settings: vec![("shared_buffers".to_owned(), "much".to_owned())],
        ..Options::throw_away()
    };

    let error = EmbeddedPostgres::start(options).await.unwrap_err();

    assert!(error.to_string().contains("shared_buffers"), "{error}");
}

#[tokio::test]
async fn a_server_that_dies_is_noticed() {
    let mut postgres = EmbeddedPostgres::start(Options::throw_away())
        .await
        .unwrap();

    kill("INT", postgres.pid().unwrap());

    let why = tokio::time::timeout(DEADLINE, postgres.unexpected_end())
        .await
        .unwrap();
    assert!(why.contains("shut down"), "{why}");
}

#[tokio::test]
async fn a_crashed_server_comes_back_under_the_same_url_with_what_was_committed() {
    let mut postgres = EmbeddedPostgres::start(Options::throw_away())
        .await
        .unwrap();
    let url = postgres.url(SUPERUSER);
    let database = Database::new(&url).unwrap();
    let session = database.connect(Role::Api).await.unwrap();
    session
        .batch_execute("CREATE TABLE survivors (n int)")
        .await
        .unwrap();

    for how in [Shutdown::Immediate, Shutdown::Kill, Shutdown::Fast] {
        let session = database.connect(Role::Api).await.unwrap();
        session
            .batch_execute("INSERT INTO survivors VALUES (1)")
            .await
            .unwrap();
        postgres.halt(how).await.unwrap();
        assert!(session.query_one("SELECT 1", &[]).await.is_err());
        assert!(database.connect(Role::Api).await.is_err());
        postgres.resume().await.unwrap();
    }

    assert_eq!(postgres.url(SUPERUSER), url);
    let session = database.connect(Role::Api).await.unwrap();
    let row = session
        .query_one("SELECT count(*) FROM survivors", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 3);
    let dir = postgres.data_dir().to_owned();
    postgres.stop().await.unwrap();
    assert!(!dir.exists());
}

#[tokio::test]
async fn test_databases_are_migrated_and_apart() {
    let (one, other) = tokio::join!(TestDatabase::new(), TestDatabase::new());

    let insert = "INSERT INTO tenants (public_id, name) VALUES (gen_random_uuid(), 'acme')";
    one.session().await.batch_execute(insert).await.unwrap();

    let count = "SELECT count(*) FROM tenants";
    let row = other.session().await.query_one(count, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}

#[tokio::test]
async fn a_test_database_is_dropped_when_its_test_ends() {
    let other = TestDatabase::new().await;
    let ended = TestDatabase::new().await;
    let name = ended.url().split(['/', '?']).nth(3).unwrap().to_owned();

    drop(ended);

    let session = other.session().await;
    eventually(DEADLINE, || async {
        let query = "SELECT FROM pg_database WHERE datname = $1";
        session
            .query(query, &[&name])
            .await
            .unwrap()
            .is_empty()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_test_cluster_survives_a_crash() {
    let mut cluster = TestCluster::new().await;
    let database = cluster.database();

    cluster.crash_and_restart().await.unwrap();
    cluster.kill_and_restart().await.unwrap();
    cluster.stop().await.unwrap();
    assert!(database.connect(Role::Api).await.is_err());
    cluster.start().await.unwrap();

    let session = database.connect(Role::Api).await.unwrap();
    let row = session
        .query_one("SELECT count(*) FROM slots", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 256);
}

#[tokio::test]
#[should_panic(expected = "not within")]
async fn eventually_gives_up_at_its_deadline() {
    eventually(Duration::from_millis(20), || async { None::<()> }).await;
}

fn stat(pid: u32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    after_name.split(' ').map(str::to_owned).collect()
}

fn parent(pid: u32) -> u32 {
    stat(pid)[1].parse().unwrap()
}

fn process_group(pid: u32) -> u32 {
    stat(pid)[2].parse().unwrap()
}

fn kill(signal: &str, pid: u32) {
    let done = Command::new("/bin/sh")
        .args(["-c", &format!("kill -{signal} {pid}")])
        .status()
        .unwrap();
    assert!(done.success());
}
