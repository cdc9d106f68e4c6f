//! Whole numbers of a configuration, of any size: a number that its key cannot have is refused with
//! the key's range and not with the name of a type.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};

/// A whole number that is not validated yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number(pub(super) i128);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Whole)
    }
}

struct Whole;

impl Visitor<'_> for Whole {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number without quotes")
    }

    fn visit_i64<E>(self, number: i64) -> Result<Number, E> {
        Ok(Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
        Ok(Number(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Number, E> {
        Ok(Number(number))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Number, E> {
        Ok(Number(i128::try_from(number).unwrap_or(i128::MAX)))
    }
}
