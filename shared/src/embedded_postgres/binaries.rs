//! Which installed PostgreSQL to run.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::place::Place;
use super::{EmbeddedError, OLDEST_MAJOR};

/// One installation.
#[derive(Debug)]
pub(super) struct Binaries {
    pub(super) dir: PathBuf,
    /// Whether it can compress WAL with lz4.
    pub(super) lz4: bool,
}

/// The first installation that fits: on `PATH`, what `pg_config` names, then the newest of the
/// distribution's. An existing cluster needs exactly its own major version.
pub(super) async fn find(made_by: Option<u32>, place: &Place) -> Result<Binaries, EmbeddedError> {
    let mut searched = Vec::new();
    for dir in candidates().await {
        if searched.contains(&dir) {
            continue;
        }
        if place.may_enter(&dir)
            && dir.join("initdb").is_file()
            && let Some(major) = major_version(&dir.join("postgres")).await
            && major >= OLDEST_MAJOR
            && made_by.is_none_or(|wanted| wanted == major)
        {
            let lz4 = supports_lz4(&dir).await;
            return Ok(Binaries { dir, lz4 });
        }
        searched.push(dir);
    }
    Err(match made_by {
        Some(made_by) => EmbeddedError::OtherVersion {
            dir: place.base.clone(),
            made_by,
        },
        None => EmbeddedError::NotFound {
            searched: searched
                .iter()
                .map(|dir| dir.display().to_string())
                .collect::<Vec<_>>()
                .join(", "),
        },
    })
}

async fn candidates() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path)
        .filter_map(|dir| {
            let postgres = dir.join("postgres").canonicalize().ok()?;
            Some(postgres.parent()?.to_owned())
        })
        .collect();
    if let Some(dir) = stdout(Command::new("pg_config").arg("--bindir")).await {
        dirs.push(PathBuf::from(dir));
    }
    dirs.extend(newest_first("/usr/lib/postgresql", ""));
    dirs.extend(newest_first("/usr", "pgsql-"));
    dirs
}

/// `<root>/<prefix><major>/bin`, the newest major version first.
fn newest_first(root: &str, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let major = name.to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((major, entry.path().join("bin")))
        })
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, dir)| dir).collect()
}

/// Reads "postgres (PostgreSQL) 15.18 (Debian …)"; also "16beta1" and "17devel".
async fn major_version(postgres: &Path) -> Option<u32> {
    let text = stdout(Command::new(postgres).arg("--version")).await?;
    let version = text.split_whitespace().nth(2)?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

async fn supports_lz4(dir: &Path) -> bool {
    stdout(Command::new(dir.join("pg_config")).arg("--configure"))
        .await
        .is_some_and(|options| options.contains("--with-lz4"))
}

async fn stdout(command: &mut Command) -> Option<String> {
    let output = command.output().await.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
