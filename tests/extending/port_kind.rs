//! net_null: a port that discards what is sent. A test adds this kind to a copy of the tree.

use std::ffi::CStr;

use urdma_underlay::MacAddr;

use super::{KeyError, Keys, Kind, KindError, Named, Needs};

/// Has no keys of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Null;

impl Named for Null {
    const NAME: &'static str = "null";
    const DRIVER: Option<&'static CStr> = Some(c"net_null");

    fn take(_: &mut Keys) -> Result<Self, KeyError> {
        Ok(Self)
    }
}

impl Kind for Null {
    fn arguments(&self, _: u16, _: MacAddr) -> Result<Option<String>, KindError> {
        Ok(Some("net_null0".to_owned()))
    }

    fn needs(&self) -> Needs {
        Needs::NOTHING
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn configuration_names_the_kind() {
        let text = "[port]\nkind = \"null\"\n";
        let config = Config::parse(Path::new("null.toml"), text).unwrap();
        assert_eq!(config.port.unwrap().kind.name(), "null");
    }
}
