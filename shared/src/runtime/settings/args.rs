//! The settings as command-line arguments, so that `--help` says what the table says.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches};

use super::table::{COMMON, Kind, Setting, find};

/// Arguments for these groups of settings. A secret key or token has only the flag `--<name>-file`:
/// command lines are visible to everyone on the machine.
#[must_use]
pub fn args(groups: &[&[&'static str]]) -> Vec<Arg> {
    let names = groups.iter().copied().flatten();
    names.filter_map(|name| find(name)).map(arg).collect()
}

fn arg(setting: &'static Setting) -> Arg {
    let name = setting.name;
    let heading = if COMMON.contains(&name) {
        "Common settings"
    } else {
        "Settings"
    };
    let help = format!(
        "{} [default: {}] [env: {name}]",
        capitalized(setting.help),
        setting.default_shown(),
    )
    .replace('`', "");
    let base = Arg::new(name).long(setting.flag).help_heading(heading);
    match setting.kind {
        Kind::Token(_) | Kind::Key => of_file(setting, heading),
        Kind::Bool => base
            .value_name("true|false")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .help(help),
        Kind::Text => base.value_name("TEXT").help(help),
        Kind::Url => base.value_name("URL").help(help),
        Kind::Addr => base.value_name("ADDRESS:PORT").help(help),
        Kind::Length(..) => base.value_name("LENGTH").help(help),
        Kind::Count(..) | Kind::Ratio => base.value_name("NUMBER").help(help),
        Kind::Cidrs => base.value_name("NETWORKS").help(help),
        Kind::DnsServers => base.value_name("ADDRESSES").help(help),
        Kind::Path => base.value_name("PATH").help(help),
        Kind::Choice(_) => base.value_name("FORMAT").help(help),
        Kind::Filter => base.value_name("FILTER").help(help),
    }
}

/// A key or token by its file.
fn of_file(setting: &'static Setting, heading: &'static str) -> Arg {
    let id = setting.secret.map_or(setting.name, |file| file.name);
    let help = format!(
        "A file with {} [default: {}] [env: {} or {id}]",
        setting.help,
        setting.default_shown(),
        setting.name,
    );
    Arg::new(id)
        .long(setting.flag_offered())
        .help_heading(heading)
        .value_name("PATH")
        .help(help.replace('`', ""))
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// The settings among parsed arguments, for [`super::Settings::load`].
#[must_use]
pub fn flags(matches: &ArgMatches) -> BTreeMap<&'static str, String> {
    matches
        .ids()
        .filter_map(|id| super::known(id.as_str()))
        .filter_map(|name| {
            // A command's own arguments share no id with a setting, so each of these is a text.
            let value = matches.try_get_one::<String>(name).ok().flatten()?;
            Some((name, value.clone()))
        })
        .collect()
}
