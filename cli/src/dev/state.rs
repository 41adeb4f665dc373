//! What `dev` keeps in its folder: the master key, the admin token, and the demo's names.
//!
//! # Invariants
//! - S2: secrets are in files of mode 0600, made with it, and in no output but the key that the
//!   newcomer is to paste.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use shared::runtime::jitter;
use shared::runtime::program::Failure;
use shared::runtime::settings::{ConfigErrors, Settings};

const MASTER_KEY: &str = "master_key";
const ADMIN_TOKEN: &str = "admin_token";
const DEMO: &str = "demo.json";

/// The demo's names, to find them again at the next start.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Names {
    pub(super) key: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) secret: Option<String>,
}

/// The folder and the secrets of this installation.
pub(super) struct State {
    /// `None`: nothing is kept.
    dir: Option<PathBuf>,
    master_key: String,
    admin_token: String,
    /// Whether POSTRIDER_ADMIN_TOKEN is set, and used instead.
    has_other_token: bool,
}

impl State {
    /// Reads the folder's secrets, or makes them.
    pub(super) fn open(settings: &Settings, ephemeral: bool) -> Result<Self, Failure> {
        let has_other_token = settings.get("POSTRIDER_ADMIN_TOKEN").is_some();
        if ephemeral {
            return Ok(Self {
                has_other_token,
                dir: None,
                master_key: new_master_key(),
                admin_token: new_token(),
            });
        }
        let dir = PathBuf::from(settings.required("POSTRIDER_DATA_DIR")?);
        fs::create_dir_all(&dir).map_err(|error| failure("make the folder", &dir, &error))?;
        Ok(Self {
            master_key: kept(&dir.join(MASTER_KEY), new_master_key)?,
            admin_token: kept(&dir.join(ADMIN_TOKEN), new_token)?,
            dir: Some(dir),
            has_other_token,
        })
    }

    /// Where the private PostgreSQL lives, if it is kept.
    pub(super) fn postgres_dir(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join("postgres"))
    }

    /// How to find the admin token: that of POSTRIDER_ADMIN_TOKEN, where it is set, is not repeated.
    pub(super) fn admin_hint(&self) -> String {
        if self.has_other_token {
            return "token of POSTRIDER_ADMIN_TOKEN".to_owned();
        }
        match &self.dir {
            Some(dir) => format!("token in {}", dir.join(ADMIN_TOKEN).display()),
            None => format!("token {}", self.admin_token),
        }
    }

    /// The settings that API and worker run with: what nobody set gets what fits a demo.
    pub(super) fn settings(
        &self,
        settings: &Settings,
        database_url: &str,
    ) -> Result<Settings, ConfigErrors> {
        let own = settings.get("POSTRIDER_ALLOW_CIDRS").unwrap_or_default();
        let mut cidrs = vec!["127.0.0.0/8", "::1/128"];
        cidrs.extend((!own.is_empty()).then_some(own));
        let unset = |name| settings.get(name).is_none();
        let mut settings = settings
            .clone()
            .with("DATABASE_URL", database_url)?
            .with("POSTRIDER_ALLOW_CIDRS", &cidrs.join(","))?
            // The demo's receiver speaks plain HTTP.
            .with("POSTRIDER_HTTPS_ONLY", "false")?;
        if unset("POSTRIDER_MASTER_KEY") {
            settings = settings.with("POSTRIDER_MASTER_KEY", &self.master_key)?;
        }
        if unset("POSTRIDER_ADMIN_TOKEN") {
            settings = settings.with("POSTRIDER_ADMIN_TOKEN", &self.admin_token)?;
        }
        Ok(settings)
    }

    /// The names of the last run. A file that cannot be understood is as good as none: what it names
    /// is made anew.
    pub(super) fn names(&self) -> Names {
        let text = self
            .dir
            .as_ref()
            .and_then(|dir| fs::read_to_string(dir.join(DEMO)).ok());
        text.and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default()
    }

    /// Keeps the names for the next run.
    pub(super) fn save(&self, names: &Names) -> Result<(), Failure> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let path = dir.join(DEMO);
        serde_json::to_vec_pretty(names)
            .map_err(io::Error::other)
            .and_then(|text| replace(&path, &text))
            .map_err(|error| failure("write", &path, &error))
    }
}

fn new_master_key() -> String {
    STANDARD.encode(jitter::bytes::<32>())
}

fn new_token() -> String {
    URL_SAFE_NO_PAD.encode(jitter::bytes::<32>())
}

/// The text in a file; made and written when there is no file.
fn kept(path: &Path, make: impl FnOnce() -> String) -> Result<String, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = make();
            replace(path, text.as_bytes()).map_err(|error| failure("write", path, &error))?;
            Ok(text)
        }
        Err(error) => Err(failure("read", path, &error)),
    }
}

/// Writes a file for its owner's eyes only, whole or not at all.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(new, path)
}

fn failure(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!(
        "cannot {what} {}: {error}; choose another folder with --data-dir, or use --ephemeral",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn open(dir: &Path) -> State {
        let settings = Settings::default()
            .with("POSTRIDER_DATA_DIR", dir.to_str().unwrap())
            .unwrap();
        State::open(&settings, false).unwrap()
    }

    #[test]
    fn secrets_are_made_once_and_only_their_owner_can_read_them() {
        let dir = tempfile::tempdir().unwrap();

        let first = open(dir.path());
        let second = open(dir.path());

        assert_eq!(first.master_key, second.master_key);
        assert_eq!(first.admin_token, second.admin_token);
        for name in [MASTER_KEY, ADMIN_TOKEN] {
            let mode = fs::metadata(dir.path().join(name))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn the_admin_token_that_is_shown_is_the_one_that_counts() {
        let dir = tempfile::tempdir().unwrap();
        let own = Settings::default().with("POSTRIDER_ADMIN_TOKEN", "a-token-of-the-operator");

        let state = State::open(&own.unwrap(), true).unwrap();

        assert_eq!(state.admin_hint(), "token of POSTRIDER_ADMIN_TOKEN");
        assert!(open(dir.path()).admin_hint().contains(ADMIN_TOKEN));
    }

    #[test]
    fn what_the_operator_set_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(dir.path());
        let token = "a-token-of-the-operator";
        let settings = Settings::default()
            .with("POSTRIDER_ADMIN_TOKEN", token)
            .and_then(|settings| settings.with("POSTRIDER_ALLOW_CIDRS", "10.0.0.0/8"))
            .unwrap();

        let settings = state.settings(&settings, "postgres://h/d").unwrap();

        assert_eq!(settings.get("POSTRIDER_ADMIN_TOKEN"), Some(token));
        assert_eq!(settings.cidrs("POSTRIDER_ALLOW_CIDRS").len(), 3);
        assert_eq!(
            settings.get("POSTRIDER_MASTER_KEY"),
            Some(state.master_key.as_str())
        );
    }

    #[test]
    fn broken_names_are_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let state = open(dir.path());
        fs::write(dir.path().join(DEMO), "{\"key\":").unwrap();

        assert!(state.names().key.is_none());
        let names = Names {
            key: Some("prk_x".to_owned()),
            ..Names::default()
        };
        state.save(&names).unwrap();
        assert_eq!(state.names().key.as_deref(), Some("prk_x"));
    }
}
