use super::*;
use crate::kinds::{Memif, Udp};

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("a.toml"), text)
}

fn sentence(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn config_empty_has_addresses_of_the_host_and_no_port() {
    let config = parse("").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.instance_name(), "default");
    assert_eq!(config.personality, Personality::Roce);
    assert_eq!(config.addresses, None);
}

#[test]
fn config_with_a_port_does_not_take_addresses_of_the_host() {
    let config = parse("[port]\nkind = \"tap\"\nnetdev = \"t\"\n").unwrap();
    let loopback = "127.0.0.1".parse::<IpAddr>().unwrap();
    assert_eq!(config.addresses, Some(vec![loopback]));
}

#[test]
fn config_with_udp_sockets_takes_addresses_of_the_host_and_no_keys_of_dpdk() {
    let config = parse("[port]\nkind = \"udp\"\n").unwrap();
    assert_eq!(config.addresses, None);
    let port = config.port.unwrap();
    assert_eq!(
        (port.kind, port.mtu, port.checksum),
        (PortKind::Udp(Udp), 1500, false)
    );
    for key in [
        "lease_queues = 0",
        "lease_group = \"root\"",
        "hugepages_mb = 64",
        "checksum = true",
        "netdev = \"eth0\"",
        "role = \"server\"",
    ] {
        let sentence = sentence(&format!("[port]\nkind = \"udp\"\n{key}\n"));
        assert!(
            sentence.starts_with("a.toml, line 3, key \"port.")
                && sentence.ends_with("this kind of port has no such key"),
            "{sentence}"
        );
    }
    let corrupt = "[port]\nkind = \"udp\"\n[fault]\ncorrupt = \"1%\"\n";
    let sentence = sentence(corrupt);
    assert!(sentence.contains("leave \"corrupt\" out"), "{sentence}");
}

#[test]
fn config_personality_is_one_of_two() {
    let config = parse("personality = \"iwarp\"").unwrap();
    assert_eq!(config.personality, Personality::Iwarp);
    let sentence = sentence("personality = \"ib\"");
    assert!(
        sentence.starts_with("a.toml, line 1, key \"personality\""),
        "{sentence}"
    );
}

#[test]
fn config_with_memif_is_understood() {
    let config = parse(
        "instance = \"b\"\naddress = [\"127.0.0.2\"]\nslots = 8\n[port]\nkind = \
        \"memif\"\nrole = \"client\"\n\
         socket = \"/tmp/m.sock\"\nmtu = 9000\nlease_queues = 2\n",
    )
    .unwrap();
    let port = config.port.unwrap();
    assert_eq!(config.slots, 8);
    assert_eq!((port.mtu, port.lease_queues), (9000, 2));
    assert_eq!(
        port.kind,
        PortKind::Memif(Memif {
            is_server: false,
            socket: "/tmp/m.sock".into()
        })
    );
}

#[test]
fn config_kernel_device_must_be_a_name() {
    let config = parse("[kernel]\ndevice = \"urdma0\"\n").unwrap();
    assert_eq!(config.kernel_device.as_deref(), Some("urdma0"));
    for name in ["", "a/b", &"x".repeat(64)] {
        let text = sentence(&format!("[kernel]\ndevice = \"{name}\"\n"));
        assert!(text.contains("kernel.device"), "{text}");
    }
}

#[test]
fn config_unknown_key_names_file_line_and_key() {
    let text = sentence("instance = \"a\"\n\n[port]\nkind = \"none\"\nspeed = 3\n");
    assert!(
        text.starts_with("a.toml, line 5, key \"port.speed\": unknown field"),
        "{text}"
    );
}

#[test]
fn config_bad_values_name_line_key_and_range() {
    for (text, expected) in [
        (
            "slots = 0",
            "a.toml, line 1, key \"slots\": must be 1 to 253, not 0",
        ),
        (
            "slots = \"x\"",
            "a.toml, line 1, key \"slots\": invalid type",
        ),
        (
            "address = [\n\"127.0.0.1\",\n\"nonsense\"]",
            "a.toml, line 3, key \"address\": invalid IP address",
        ),
        ("address = []", "a.toml, line 1, key \"address\": must list"),
        (
            "address = [\"::1\", \"::1\"]",
            "a.toml, line 1, key \"address\": ::1 is there twice",
        ),
        (
            "instance = \"a/b\"",
            "a.toml, line 1, key \"instance\": must be 1 to 64",
        ),
        (
            "group = \"no such group\"",
            "a.toml, line 1, key \"group\": there is no group",
        ),
        (
            "access = \"group\"",
            "a.toml, line 1, key \"access\": needs the key \"group\"",
        ),
        (
            "group = \"daemon\"\naccess = \"everyone\"",
            "a.toml, line 2, key \"access\": contradicts the key \"group\": leave one",
        ),
        (
            "access = \"owner\"\ngroup = \"daemon\"",
            "a.toml, line 1, key \"access\": contradicts the key \"group\": leave one",
        ),
        (
            "access = \"nobody\"",
            "a.toml, line 1, key \"access\": unknown variant",
        ),
        (
            "access = \"everyone\"\n[kernel]\ndevice = \"urdma0\"",
            "a.toml, line 3, key \"kernel.device\": the kernel admits the users of one group",
        ),
        (
            "access = \"everyone\"\n[port]\nkind = \"tap\"\nnetdev = \"t\"\nlease_queues = 1",
            "a.toml, line 5, key \"port.lease_queues\": a process with a lease can change",
        ),
        (
            "[port]\nkind = \"tap\"\nnetdev = \"t\"\nlease_group = \"no such group\"",
            "a.toml, line 4, key \"port.lease_group\": there is no group",
        ),
        (
            "[quota]\nrequests_per_second = 0",
            "a.toml, line 2, key \"quota.requests_per_second\": must be 1 to 1000000, not 0",
        ),
        (
            "[frames]\nring = 1000",
            "a.toml, line 1, key \"frames\": unknown field",
        ),
        (
            "[port]\nkind = \"warp\"",
            "a.toml, line 2, key \"port.kind\": unknown variant",
        ),
        (
            "[port]\nkind = \"memif\"\nrole = \"server\"",
            "a.toml, line 2, key \"port.kind\": this kind of port needs \"socket\"",
        ),
        (
            "[port]\nkind = \"none\"\nnetdev = \"eth0\"",
            "a.toml, line 3, key \"port.netdev\": this kind of port has no such key",
        ),
        (
            "[port]\nkind = \"tap\"\nnetdev = \"a,b\"",
            "a.toml, line 3, key \"port.netdev\": is no name",
        ),
        (
            "[port]\nkind = \"tap\"\nnetdev = \"t\"\nmtu = 100",
            "a.toml, line 4, key \"port.mtu\": must be 1280 to 9600, not 100",
        ),
        (
            "[port]\nkind = \"tap\"\nnetdev = \"t\"\n[fault]\nloss = \"1\"",
            "a.toml, line 5, key \"fault.loss\": \"1\" is not a share of packets: write",
        ),
        (
            "[fault]\nloss = \"1%\"",
            "a.toml, line 1, key \"fault\": this instance has no port",
        ),
        ("slots 3", "a.toml, line 1"),
        (
            "address = [\"127.0.0.1\", \"::ffff:127.0.0.1\"]",
            "a.toml, line 1, key \"address\": ::ffff:127.0.0.1 is an IPv4 address: write 127.0.0.1",
        ),
        (
            "address = [\"::ffff:224.0.0.1\"]",
            "a.toml, line 1, key \"address\": ::ffff:224.0.0.1 is an IPv4 address: write 224",
        ),
        (
            "address = [\"255.255.255.255\"]",
            "a.toml, line 1, key \"address\": 255.255.255.255 is not the address of one host: name",
        ),
        (
            "address = [\"239.1.1.1\"]",
            "a.toml, line 1, key \"address\": 239.1.1.1 is not the address of one host: name",
        ),
        (
            "address = [\"10.0.0.1\", \"240.0.0.1\"]\n[port]\nkind = \"udp\"",
            "a.toml, line 1, key \"address\": 240.0.0.1 is reserved (240.0.0.0/4), and routers and \
             other hosts drop its packets: name an address of this host, or a private one such as",
        ),
        (
            "address = [\"255.255.255.254\"]",
            "a.toml, line 1, key \"address\": 255.255.255.254 is reserved",
        ),
        (
            "address = [\"fe80::1\"]\n[port]\nkind = \"udp\"",
            "a.toml, line 1, key \"address\": fe80::1 is a link-local address, which is ambiguous \
             without its interface: name a global address of this host, or a unique local one",
        ),
        (
            "address = [\"febf:ffff::1\"]",
            "a.toml, line 1, key \"address\": febf:ffff::1 is a link-local address",
        ),
        (
            "[port]\nkind = \"device\"\ndevice = \"\"",
            "a.toml, line 3, key \"port.device\": must be what DPDK calls the device",
        ),
        (
            "[port]\nkind = \"memif\"\nrole = \"server\"\nsocket = \"\"",
            "a.toml, line 4, key \"port.socket\": must be a path",
        ),
        (
            "[sockets]\nexclude = [\"6379\", \"redis\"]",
            "a.toml, line 2, key \"sockets.exclude\": \"redis\": write a port (6379), ports",
        ),
        (
            "[metrics]\nlisten = \"127.0.0.1:0\"",
            "a.toml, line 2, key \"metrics.listen\": \"127.0.0.1:0\" must be an address with a \
             port other than 0",
        ),
        (
            "[metrics]\nlisten = \"localhost\"",
            "a.toml, line 2, key \"metrics.listen\": \"localhost\" must be an address with a port",
        ),
        (
            "[metrics]\nlisten = \"192.0.2.1:1\"",
            "a.toml, line 2, key \"metrics.listen\": must be an address of the loopback",
        ),
    ] {
        let said = sentence(text);
        assert!(said.starts_with(expected), "{text:?} gave {said:?}");
    }
}

#[test]
fn config_excludes_the_connections_that_it_names() {
    let config = parse("[sockets]\nexclude = [\"6379\", \"10.0.0.0/8\"]").unwrap();
    assert_eq!(config.sockets_excluded, "6379,10.0.0.0/8".parse().unwrap());
    assert_eq!(parse("").unwrap().sockets_excluded, SocketRules::default());
}

#[test]
fn config_addresses_beside_the_refused_ones_are_valid() {
    for address in ["223.255.255.255", "fe7f::1", "fec0::1", "fd00::1"] {
        let outcome = parse(&format!("address = [\"{address}\"]"));
        assert!(outcome.is_ok(), "{address}: {outcome:?}");
    }
}

#[test]
fn config_access_is_that_of_the_owner_unless_a_key_says_otherwise() {
    let group = Group::from_name("daemon").unwrap().unwrap().gid;
    for (text, access) in [
        ("", Access::Owner),
        ("access = \"owner\"", Access::Owner),
        ("group = \"daemon\"", Access::Group(group)),
        (
            "access = \"group\"\ngroup = \"daemon\"",
            Access::Group(group),
        ),
        ("access = \"everyone\"", Access::Everyone),
    ] {
        assert_eq!(parse(text).unwrap().access, access, "{text}");
    }
}

#[test]
fn config_of_everyone_may_lease_to_a_group() {
    let keys = "[port]\nkind = \"tap\"\nnetdev = \"t\"\nlease_queues = 1\n\
                lease_group = \"daemon\"";
    let config = parse(&format!("access = \"everyone\"\n{keys}")).unwrap();
    assert_eq!(config.port.unwrap().lease_queues, 1);
}

#[test]
fn config_sample_is_valid_and_its_comments_are_too() {
    let sample = include_str!("../../systemd/default.toml");
    assert_eq!(parse(sample).unwrap(), Config::default());
    let everything: String = sample
        .lines()
        .map(|line| {
            line.strip_prefix('#')
                .filter(|l| !l.starts_with(' '))
                .unwrap_or(line)
        })
        .filter(|line| !line.starts_with("group") && !line.starts_with("lease_group"))
        .map(|line| format!("{line}\n"))
        .collect();
    let config = parse(&everything).unwrap();
    assert_eq!(config.slots, SLOTS_MAX);
    assert_eq!(config.port.unwrap().mtu, 9000);
}

#[test]
fn config_missing_file_is_named() {
    let error = Config::read(Path::new("/nonexistent/x.toml")).unwrap_err();
    assert!(error
        .to_string()
        .starts_with("/nonexistent/x.toml: cannot be read: No such file"));
}

// Messages named types: "expected struct RawPort", "expected u16", "integer `...` as i128".
#[test]
fn config_values_of_the_wrong_type_are_refused_in_terms_of_the_configuration() {
    const LONG: &str = "99999999999999999999";
    for (text, expected) in [
        (
            "port = 3".to_owned(),
            "key \"port\": invalid type: integer `3`, expected the table [port] of keys",
        ),
        (
            "quota = \"x\"".to_owned(),
            "key \"quota\": invalid type: string \"x\", expected the table [quota] of keys",
        ),
        (
            "slots = \"x\"".to_owned(),
            "key \"slots\": invalid type: string \"x\", expected a whole number without quotes",
        ),
        (
            "slots = -1".to_owned(),
            "key \"slots\": must be 1 to 253, not -1",
        ),
        (
            format!("slots = {LONG}"),
            "key \"slots\": must be 1 to 253, not 99999999999999999999",
        ),
        (
            format!("[quota]\nconnections = {LONG}"),
            "key \"quota.connections\": must be 2 to 4096, not 99999999999999999999",
        ),
        (
            "[port]\nkind = \"udp\"\n[fault]\nseed = -1".to_owned(),
            "key \"fault.seed\": must be 0 to 18446744073709551615, not -1",
        ),
    ] {
        let said = sentence(&text);
        assert!(said.contains(expected), "{text:?} gave {said:?}");
    }
    // Each key with a value of each type.
    let sample = include_str!("../../systemd/default.toml");
    let values = [
        "[3]",
        "{ a = 1 }",
        "1.5",
        "true",
        "1979-05-27",
        LONG,
        "\"\"",
    ];
    let mut table = String::new();
    for line in sample.lines().map(|line| line.trim_start_matches('#')) {
        if line.starts_with('[') {
            table = format!("{line}\n");
        }
        let Some((key, _)) = line.split_once(" = ").filter(|(key, _)| !key.contains(' ')) else {
            continue;
        };
        for value in values {
            let Err(error) = parse(&format!("{table}{key} = {value}\n")) else {
                continue;
            };
            let said = error.to_string();
            for word in [
                "Raw", "struct", "i128", "u16", "u32", "i64", "u64", "IpAddr", "PathBuf",
            ] {
                assert!(!said.contains(word), "{key} = {value} gave {said:?}");
            }
        }
    }
}
