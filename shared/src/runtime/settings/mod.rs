//! Settings: what an operator can set, from where, and what is wrong with it.
//!
//! Each setting comes from its flag, else its environment variable, else the TOML file, else its
//! default. Secrets can come from a file named by `<NAME>_FILE`. Names that nobody knows are errors,
//! and every problem is reported at once. A loaded [`Settings`] holds only values that were checked.
//!
//! # Invariants
//! - S2: a secret's value is in no error, in no `Debug` and in nothing that [`Settings::shown`] gives.

mod args;
mod check;
mod errors;
pub mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;

pub use args::{args, flags};
pub use errors::{ConfigErrors, Problem};
pub use table::{Kind, Setting, TABLE, find};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A flag.
    Flag,
    /// An environment variable.
    Environment,
    /// The TOML file.
    File,
    /// Nobody set it.
    Default,
}

impl Source {
    /// For people.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        }
    }
}

/// Checked settings.
#[derive(Clone, Default)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, Source)>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.shown();
        out.debug_map()
            .entries(shown.iter().map(|row| (row.name, &row.value)))
            .finish()
    }
}

/// A setting as `postrider config show` prints it: a secret is only "set" or "not set".
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Shown {
    /// Its name.
    pub name: &'static str,
    /// Its value; `null` when it has none.
    pub value: Option<String>,
    /// Where the value comes from.
    pub source: &'static str,
}

impl Settings {
    /// Resolves every setting: `flags` (by setting name, or `<NAME>_FILE`), then `env`, then the TOML
    /// file that `POSTRIDER_CONFIG` names, then defaults.
    ///
    /// # Errors
    /// Every problem found, each naming the setting and the fix.
    pub fn load(
        flags: BTreeMap<&'static str, String>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let flags: BTreeMap<String, String> = flags
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let env: BTreeMap<String, String> = env
            .into_iter()
            .filter(|(name, _)| name.starts_with("POSTRIDER_") || known(name).is_some())
            .collect();
        refuse_unknown(&env, "environment variable", &mut errors);
        refuse_unknown(&flags, "setting", &mut errors);
        let path = flags
            .get("POSTRIDER_CONFIG")
            .or_else(|| env.get("POSTRIDER_CONFIG"));
        let file = path.map_or_else(BTreeMap::new, |path| read_toml(path, &mut errors));
        let layers = [
            (Source::Flag, &flags),
            (Source::Environment, &env),
            (Source::File, &file),
        ];
        let mut settings = Self::default();
        for setting in TABLE {
            match resolve(setting, &layers) {
                Ok(Some((value, source))) => {
                    if let Err(detail) = check::check(setting, &value) {
                        errors.add(setting.name, detail);
                    }
                    settings.values.insert(setting.name, (value, source));
                }
                Ok(None) => {}
                Err(detail) => errors.add(setting.name, detail),
            }
        }
        errors.into_result().map(|()| settings)
    }

    /// A copy with another value, as if a flag had set it.
    ///
    /// # Errors
    /// When the name is unknown or the value does not fit it.
    pub fn with(mut self, name: &str, value: &str) -> Result<Self, ConfigErrors> {
        let Some(setting) = find(name) else {
            return Err(ConfigErrors::one(name, "is no setting"));
        };
        check::check(setting, value).map_err(|detail| ConfigErrors::one(name, detail))?;
        let value = (value.to_owned(), Source::Flag);
        self.values.insert(setting.name, value);
        Ok(self)
    }

    /// The value, if it is set or has a default.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|(value, _)| value.as_str())
    }

    /// The value of a setting that this program cannot do without.
    ///
    /// # Errors
    /// Names the setting and the ways to set it.
    pub fn required(&self, name: &str) -> Result<&str, ConfigErrors> {
        self.get(name).ok_or_else(|| missing(name))
    }

    /// A length of time that has a default.
    #[must_use]
    pub fn duration(&self, name: &str) -> Duration {
        self.typed(name, |value| humantime::parse_duration(value).ok())
    }

    /// A whole number that has a default.
    #[must_use]
    pub fn count(&self, name: &str) -> usize {
        self.typed(name, |value| value.parse().ok())
    }

    /// A share of 1 that has a default.
    #[must_use]
    pub fn ratio(&self, name: &str) -> f64 {
        self.typed(name, check::ratio)
    }

    /// A truth value that has a default.
    #[must_use]
    pub fn bool(&self, name: &str) -> bool {
        self.typed(name, check::bool)
    }

    /// An address that has a default.
    #[must_use]
    pub fn addr(&self, name: &str) -> SocketAddr {
        self.typed(name, check::addr)
    }

    /// An address whose default depends on the program (`POSTRIDER_METRICS_ADDR`).
    #[must_use]
    pub fn addr_or(&self, name: &str, default: SocketAddr) -> SocketAddr {
        self.get(name).and_then(check::addr).unwrap_or(default)
    }

    /// Networks that have a default.
    #[must_use]
    pub fn cidrs(&self, name: &str) -> Vec<IpNet> {
        self.typed(name, |value| check::cidrs(value).ok())
    }

    /// DNS servers that have a default.
    #[must_use]
    pub fn dns_servers(&self, name: &str) -> Vec<SocketAddr> {
        self.typed(name, |value| check::dns_servers(value).ok())
    }

    /// Where a value comes from.
    #[must_use]
    pub fn source(&self, name: &str) -> Source {
        self.values
            .get(name)
            .map_or(Source::Default, |(_, source)| source.clone())
    }

    /// Every setting, secrets hidden, in the order of the table.
    #[must_use]
    pub fn shown(&self) -> Vec<Shown> {
        TABLE
            .iter()
            .map(|setting| Shown {
                name: setting.name,
                value: self.get(setting.name).map(|value| {
                    if setting.secret.is_some() {
                        "(set, hidden)".to_owned()
                    } else {
                        value.to_owned()
                    }
                }),
                source: self.source(setting.name).as_str(),
            })
            .collect()
    }

    #[expect(
        clippy::panic,
        reason = "a name or type that is not in the table is a bug, found by the first test of the caller"
    )]
    fn typed<T>(&self, name: &str, read: impl Fn(&str) -> Option<T>) -> T {
        let value = self
            .get(name)
            .or_else(|| find(name).and_then(|setting| setting.default));
        match value.and_then(read) {
            Some(value) => value,
            None => panic!("{name} has no value of the type that was asked for"),
        }
    }
}

/// The error of a setting that must be set and is not.
#[must_use]
pub fn missing(name: &str) -> ConfigErrors {
    let Some(setting) = find(name) else {
        return ConfigErrors::one(name, "is missing");
    };
    let ways = match setting.secret {
        Some(file) => format!(
            "set {name} or {} or give --{}",
            file.name,
            setting.flag_offered()
        ),
        None => format!("set {name} or give --{}", setting.flag),
    };
    ConfigErrors::one(name, format!("is required: {ways} ({})", setting.help))
}

/// A name in the environment or among the flags, if it means a setting or the file of a secret.
fn known(name: &str) -> Option<&'static str> {
    let of_file = TABLE.iter().filter_map(|setting| setting.secret);
    let mut names = TABLE
        .iter()
        .map(|setting| setting.name)
        .chain(of_file.map(|file| file.name));
    names.find(|known| *known == name)
}

fn refuse_unknown(names: &BTreeMap<String, String>, what: &str, errors: &mut ConfigErrors) {
    for name in names.keys().filter(|name| known(name).is_none()) {
        let known = TABLE.iter().map(|setting| setting.name);
        let advice = errors::did_you_mean(name, known).map_or_else(
            || "remove it; `postrider config show` lists all settings".to_owned(),
            |near| format!("did you mean {near}?"),
        );
        errors.add(name, format!("unknown {what}: {advice}"));
    }
}

type Layer<'a> = (Source, &'a BTreeMap<String, String>);

/// The value of the first layer that has one, else the default.
fn resolve(setting: &Setting, layers: &[Layer<'_>]) -> Result<Option<(String, Source)>, String> {
    for (source, names) in layers {
        let file = setting.secret.and_then(|file| names.get(file.name));
        match (names.get(setting.name), file) {
            (Some(_), Some(_)) => {
                return Err(format!(
                    "is set both directly and by {}_FILE: keep one of them",
                    setting.name
                ));
            }
            (Some(value), None) => return Ok(Some((value.clone(), source.clone()))),
            (None, Some(path)) => {
                return read_secret(path).map(|value| Some((value, source.clone())));
            }
            (None, None) => {}
        }
    }
    Ok(setting
        .default
        .map(|value| (value.to_owned(), Source::Default)))
}

fn read_secret(path: &str) -> Result<String, String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
        Err(error) => Err(format!("its file {path} cannot be read: {error}")),
    }
}

/// Reads the file into the names of settings; complains about what it cannot use.
fn read_toml(path: &str, errors: &mut ConfigErrors) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            errors.add(
                "POSTRIDER_CONFIG",
                format!("{path} cannot be read: {error}"),
            );
            return values;
        }
    };
    let table = match text.parse::<toml::Table>() {
        Ok(table) => table,
        Err(error) => {
            // Its own text would quote the line, which may hold a secret.
            let place = error.span().map_or(0, |span| {
                text.bytes()
                    .take(span.start)
                    .filter(|b| *b == b'\n')
                    .count()
                    + 1
            });
            let detail = format!("{path}, line {place}: {}", error.message());
            errors.add("POSTRIDER_CONFIG", detail);
            return values;
        }
    };
    for (key, value) in table {
        match (name_of_key(&key), text_of(&value)) {
            (None, _) => {
                let keys: Vec<String> = TABLE.iter().map(Setting::key).collect();
                let near = errors::did_you_mean(&key, keys.iter().map(String::as_str));
                let advice = near.map_or_else(
                    || "remove it; `postrider config show` lists all settings".to_owned(),
                    |near| format!("did you mean {near}?"),
                );
                errors.add(&key, format!("unknown key in {path}: {advice}"));
            }
            (Some(name), None) => {
                errors.add(
                    name,
                    format!("in {path}: expected a text, number or boolean"),
                );
            }
            (Some(name), Some(text)) => {
                values.insert(name.to_owned(), text);
            }
        }
    }
    values
}

fn name_of_key(key: &str) -> Option<&'static str> {
    // A file that names its own file would be read by nobody.
    let known = |setting: &&Setting| setting.name != "POSTRIDER_CONFIG";
    let mut settings = TABLE.iter().filter(known);
    if let Some(setting) = settings.find(|setting| setting.key() == key) {
        return Some(setting.name);
    }
    let base = key.strip_suffix("_file")?;
    let setting = TABLE.iter().find(|setting| setting.key() == base)?;
    setting.secret.map(|file| file.name)
}

fn text_of(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(n) => Some(n.to_string()),
        toml::Value::Boolean(b) => Some(b.to_string()),
        toml::Value::Array(items) => {
            let texts: Option<Vec<&str>> = items.iter().map(toml::Value::as_str).collect();
            texts.map(|texts| texts.join(","))
        }
        toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests;
