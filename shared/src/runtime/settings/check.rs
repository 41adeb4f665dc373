//! Is a value what its setting wants? Each complaint says what was found and what would do.
//! Secrets are never repeated.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;

use super::table::{Kind, MOST_DNS_SERVERS, Setting};

/// Complains about a value that does not fit its setting.
pub(super) fn check(setting: &Setting, value: &str) -> Result<(), String> {
    let found = || {
        if setting.secret.is_some() {
            String::new()
        } else {
            format!(", found `{value}`")
        }
    };
    match setting.kind {
        Kind::Text | Kind::Url | Kind::Path => not_empty(value),
        Kind::Token(least) => token(value, least),
        Kind::Key => key(value),
        Kind::Addr => addr(value)
            .map(drop)
            .ok_or_else(|| format!("expected address:port like 127.0.0.1:8080{}", found())),
        Kind::Length(least, most) => length(value, least, most),
        Kind::Count(least, most) => match value.parse::<u64>() {
            Ok(n) if (least..=most).contains(&n) => Ok(()),
            Ok(_) | Err(_) => Err(format!(
                "expected a whole number from {least} to {most}{}",
                found()
            )),
        },
        Kind::Ratio => ratio(value)
            .map(drop)
            .ok_or_else(|| format!("expected a number from 0 to 1{}", found())),
        Kind::Bool => bool(value)
            .map(drop)
            .ok_or_else(|| format!("expected true or false{}", found())),
        Kind::Cidrs => cidrs(value).map(drop),
        Kind::DnsServers => dns_servers(value).map(drop),
        Kind::Choice(words) if words.contains(&value) => Ok(()),
        Kind::Choice(words) => Err(format!("expected {}{}", words.join(" or "), found())),
        Kind::Filter => tracing_subscriber::EnvFilter::builder()
            .parse(value)
            .map(drop)
            .map_err(|error| format!("expected a level like info or worker=debug: {error}")),
    }
}

fn not_empty(value: &str) -> Result<(), String> {
    if value.is_empty() {
        Err("is empty: set it or leave it out".to_owned())
    } else {
        Ok(())
    }
}

fn token(value: &str, least: usize) -> Result<(), String> {
    if value.chars().count() < least {
        Err(format!("too short: at least {least} characters are needed"))
    } else if value.chars().any(|c| !c.is_ascii_graphic()) {
        Err("holds spaces or characters that no HTTP header can carry".to_owned())
    } else {
        Ok(())
    }
}

fn key(value: &str) -> Result<(), String> {
    match STANDARD.decode(value) {
        Ok(bytes) if bytes.len() == 32 => Ok(()),
        Ok(bytes) => Err(format!(
            "expected 32 bytes in base64, found {}: make one with `openssl rand -base64 32`",
            bytes.len()
        )),
        Err(_not_base64) => Err(
            "expected 32 bytes in base64 (44 characters): make one with `openssl rand -base64 32`"
                .to_owned(),
        ),
    }
}

fn length(value: &str, least: Duration, most: Duration) -> Result<(), String> {
    let show = humantime::format_duration;
    match humantime::parse_duration(value) {
        Ok(length) if (least..=most).contains(&length) => Ok(()),
        Ok(_) => Err(format!(
            "expected from {} to {}, found `{value}`",
            show(least),
            show(most)
        )),
        Err(_unreadable) => Err(format!(
            "expected a number with its unit like 10s, 5m or 30d, found `{value}`"
        )),
    }
}

/// Reads `address:port`.
pub(super) fn addr(value: &str) -> Option<SocketAddr> {
    value.replace("localhost:", "127.0.0.1:").parse().ok()
}

/// Reads a share of 1.
pub(super) fn ratio(value: &str) -> Option<f64> {
    let number = value.parse().ok()?;
    (0.0..=1.0).contains(&number).then_some(number)
}

/// Reads a truth value.
pub(super) fn bool(value: &str) -> Option<bool> {
    match value {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Reads networks separated by commas; a bare address is a network of one.
pub(super) fn cidrs(value: &str) -> Result<Vec<IpNet>, String> {
    value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| {
            part.parse::<IpNet>()
                .or_else(|_not_a_network| part.parse().map(|ip: std::net::IpAddr| IpNet::from(ip)))
                .map_err(|_unreadable| {
                    format!("expected networks like 10.0.0.0/8,fd00::/8, found `{part}`")
                })
        })
        .collect()
}

/// Reads DNS servers separated by commas; one without a port is on port 53.
pub(super) fn dns_servers(value: &str) -> Result<Vec<SocketAddr>, String> {
    let servers: Vec<_> = value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| {
            let bare = || part.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53));
            part.parse::<SocketAddr>()
                .or_else(|_no_port| bare())
                .ok()
                .filter(|server| server.port() != 0)
                .ok_or_else(|| {
                    format!("expected addresses like 10.0.0.2,[fd00::2]:5353, found `{part}`")
                })
        })
        .collect::<Result<_, _>>()?;
    if servers.len() > MOST_DNS_SERVERS {
        return Err(format!(
            "expected at most {MOST_DNS_SERVERS} servers, found {}",
            servers.len()
        ));
    }
    Ok(servers)
}
