//! Which proxy to go through: `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, as curl and Go read them.

use std::net::IpAddr;

/// The proxy for a URL, if one is to be used. `variable` gives the value of an environment variable.
pub(super) fn proxy_for(
    scheme: &str,
    host: &str,
    port: u16,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let either = |upper: &str| {
        let lower = variable(&upper.to_ascii_lowercase());
        lower.or_else(|| variable(upper)).filter(|value| !value.trim().is_empty())
    };
    let proxy = either(if scheme == "https" { "HTTPS_PROXY" } else { "HTTP_PROXY" })
        .or_else(|| either("ALL_PROXY"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    if super::is_loopback(&host) || exempt(&either("NO_PROXY").unwrap_or_default(), &host, port) {
        return None;
    }
    Some(proxy.trim().into())
}

/// Whether a list like `localhost,.site.example,10.0.0.0/8,host:5000` or `*` has the host.
fn exempt(list: &str, host: &str, port: u16) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    list.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let (Some(address), Some((network, bits))) = (address, entry.split_once('/')) {
            return in_network(address, network, bits);
        }
        let entry = entry.to_ascii_lowercase();
        let (name, wanted) = match entry.rsplit_once(':') {
            Some((name, digits)) if !name.contains(':') => (name, digits.parse::<u16>().ok()),
            _ => (entry.as_str(), None),
        };
        let domain = name.trim_start_matches('*').trim_start_matches('.');
        let same = host == domain || host.strip_suffix(domain).is_some_and(|front| front.ends_with('.'));
        same && wanted.is_none_or(|wanted| wanted == port)
    })
}

fn in_network(address: IpAddr, network: &str, bits: &str) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            a.to_bits() & mask == n.to_bits() & mask
        }
        (IpAddr::V6(a), IpAddr::V6(n)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            a.to_bits() & mask == n.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_which_proxy() {
        let variables = [
            ("https_proxy", "http://p:1"),
            ("HTTP_PROXY", "p:2"),
            ("NO_PROXY", "plain.example, .sub.example,*.star.example,10.1.0.0/16,fd00::/8,port.example:5000"),
        ];
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let proxy = |scheme: &str, host: &str, port| proxy_for(scheme, host, port, variable);
        assert_eq!(proxy("https", "a.example", 443).as_deref(), Some("http://p:1"));
        assert_eq!(proxy("http", "a.example", 80).as_deref(), Some("p:2"));
        for host in
            ["plain.example", "x.plain.example", "sub.example", "a.sub.example", "A.STAR.example", "10.1.2.3"]
        {
            assert_eq!(proxy("https", host, 443), None, "{host}");
        }
        for host in ["localhost", "127.0.0.2", "[::1]", "[fd00::7]"] {
            assert_eq!(proxy("https", host, 443), None, "{host}");
        }
        for host in ["notplain.example", "10.2.0.1", "[fe00::1]"] {
            assert!(proxy("https", host, 443).is_some(), "{host}");
        }
        assert_eq!(proxy("https", "port.example", 5000), None);
        assert!(proxy("https", "port.example", 443).is_some());
        assert_eq!(proxy_for("https", "a", 443, |_| None), None);
        assert_eq!(
            proxy_for("https", "a", 443, |n| (n == "ALL_PROXY").then(|| "q".into())).as_deref(),
            Some("q")
        );
        assert_eq!(
            proxy_for("https", "a", 443, |n| Some(if n == "no_proxy" { "*" } else { "q" }.into())),
            None
        );
    }
}
