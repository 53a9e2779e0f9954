//! Parses a line of JSON. Strings are borrowed from the line and objects are lists, because a line has few fields and
//! each is read once.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

#[derive(Debug, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Uint(u64),
    Int(i64),
    Float(f64),
    String(Cow<'a, str>),
    Array(Vec<Self>),
    Object(Object<'a>),
}

/// Fields by name. If a name occurs twice, the last one counts.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Object<'a>(Vec<(Cow<'a, str>, Json<'a>)>);

impl<'a> Object<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&Json<'a>> {
        self.0.iter().rev().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    pub(super) fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Json<'a>)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }
}

impl<'a> Json<'a> {
    pub(super) fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(is) => Some(*is),
            _ => None,
        }
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Uint(n) => Some(*n),
            _ => None,
        }
    }

    pub(super) fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Uint(n) => i64::try_from(*n).ok(),
            Self::Int(n) => Some(*n),
            _ => None,
        }
    }

    pub(super) fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Uint(n) => Some(*n as f64),
            Self::Int(n) => Some(*n as f64),
            Self::Float(n) => Some(*n),
            _ => None,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_array(&self) -> Option<&Vec<Self>> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    pub(super) fn as_object(&self) -> Option<&Object<'a>> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Any)
    }
}

/// The name of a field, borrowed if nothing in it is escaped.
struct Field<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Field<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match from.deserialize_str(Any)? {
            Json::String(name) => Ok(Self(name)),
            _ => Err(serde::de::Error::custom("a field name must be a string")),
        }
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, is: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(is))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Json<'de>, E> {
        Ok(Json::Uint(n))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Json<'de>, E> {
        Ok(Json::Int(n))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Json<'de>, E> {
        Ok(Json::Float(n))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::String(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::String(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Json<'de>, A::Error> {
        // Enough for most lines, which saves copying as the list grows. Larger blocks than 1032 bytes take longer to get.
        let mut list = Vec::with_capacity(18);
        while let Some((Field(name), value)) = fields.next_entry()? {
            list.push((name, value));
        }
        Ok(Json::Object(Object(list)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_is_read() {
        let text = r#"{"a":null,"b":true,"c":7,"d":-7,"e":1.5,"f":"x","g":"\u0041\n","h":[1,[]],"i":{"j":{}},"\"k":18446744073709551615}"#;
        let json: Json<'_> = serde_json::from_str(text).unwrap();
        let object = json.as_object().unwrap();
        let get = |name: &str| object.get(name).unwrap();
        assert_eq!(get("a"), &Json::Null);
        assert_eq!(get("b"), &Json::Bool(true));
        assert_eq!((get("c").as_u64(), get("c").as_i64(), get("c").as_f64()), (Some(7), Some(7), Some(7.0)));
        assert_eq!((get("d").as_u64(), get("d").as_i64(), get("d").as_f64()), (None, Some(-7), Some(-7.0)));
        assert_eq!((get("e").as_u64(), get("e").as_f64()), (None, Some(1.5)));
        assert!(matches!(get("f"), Json::String(Cow::Borrowed("x"))));
        assert_eq!(get("g").as_str(), Some("A\n"));
        assert_eq!(get("h").as_array().map(Vec::len), Some(2));
        assert!(get("i").as_object().unwrap().contains_key("j"));
        assert_eq!((get("\"k").as_u64(), get("\"k").as_i64()), (Some(u64::MAX), None));
        assert_eq!(object.iter().count(), 10);
    }

    #[test]
    fn the_last_field_with_a_name_counts() {
        let json: Json<'_> = serde_json::from_str(r#"{"a":1,"a":2}"#).unwrap();
        assert_eq!(json.as_object().unwrap().get("a"), Some(&Json::Uint(2)));
    }

    #[test]
    fn nesting_is_limited() {
        for deep in ["[".repeat(100_000), "{\"a\":".repeat(100_000)] {
            assert!(serde_json::from_str::<Json<'_>>(&deep).is_err());
        }
    }
}
