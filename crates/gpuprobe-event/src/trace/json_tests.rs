//! JSON, compared with serde_json.

use std::borrow::Cow;

use serde_json::Value;

use super::json::{Json, parse};

#[test]
fn every_kind_of_value_is_read() {
    let text = r#"{"a":null,"b":true,"c":7,"d":-7,"e":1.5,"f":"x","g":"\u0041\n","h":[1,[]],"i":{"j":{}},"\"k":18446744073709551615}"#;
    let json = parse(text).unwrap();
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
    let json = parse(r#"{"a":1,"a":2}"#).unwrap();
    assert_eq!(json.as_object().unwrap().get("a"), Some(&Json::Uint(2)));
}

#[test]
fn nesting_is_limited() {
    for deep in ["[".repeat(100_000), "{\"a\":".repeat(100_000)] {
        assert_eq!(parse(&deep), None);
    }
    for (depth, is_read) in [(127, true), (128, false)] {
        let text = "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(parse(&text).is_some(), is_read);
        assert_same(&text);
    }
}

/// As serde_json reads it.
fn converted(json: &Json<'_>) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(is) => (*is).into(),
        Json::Uint(n) => (*n).into(),
        Json::Int(n) => (*n).into(),
        Json::Float(n) => (*n).into(),
        Json::String(text) => (&**text).into(),
        Json::Array(items) => items.iter().map(converted).collect(),
        Json::Object(object) => {
            object.iter().map(|(name, json)| (name.to_owned(), converted(json))).collect()
        }
    }
}

/// Compares with serde_json, whose floating-point numbers may differ in the last bit.
fn assert_same(text: &str) {
    let (ours, theirs) = (parse(text).as_ref().map(converted), serde_json::from_str(text).ok());
    assert!(is_same(&ours.clone().unwrap_or_default(), &theirs.clone().unwrap_or_default()), "{text}");
    assert_eq!(ours.is_some(), theirs.is_some(), "{text}");
}

fn is_same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            a.is_sign_negative() == b.is_sign_negative() && (a - b).abs() <= a.abs() * f64::EPSILON
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((a, x), (b, y))| a == b && is_same(x, y))
        }
        _ => ours == theirs,
    }
}

/// Valid and invalid values.
const VALUES: &[&str] = &[
    "",
    " ",
    "1 2",
    "1,",
    "[1,]",
    "[,1]",
    "[1 2]",
    "{\"a\":1,}",
    "{\"a\" 1}",
    "{a:1}",
    "{\"a\"}",
    "{1:2}",
    "nul",
    "nulls",
    "true",
    "tru",
    "falsee",
    "[true,false,null]",
    "]",
    "}",
    "[}",
    "{]",
    "[",
    "{",
    "\"",
    "\"\\",
    "\"\\\"",
    "\"a\nb\"",
    "\"a\\nb\"",
    "\"\t\"",
    "\t1\r\n",
    "\"\\ud800\"",
    "\"\\ud83d\\ude00\"",
    "\"\\x\"",
    "\"\\u12\"",
    "\"\u{1F600}\"",
    "\"0123456789abcdef0123456789\\\"x\"",
    "\"01234567\"",
    "\"0123456\"",
    "0",
    "-0",
    "-",
    "+1",
    "01",
    "-01",
    "00",
    "1.",
    ".5",
    "1.5",
    "-1.5",
    "0.1",
    "1e5",
    "1E+5",
    "1e-5",
    "1e",
    "1e+",
    "1e999",
    "-1e999",
    "0e999",
    "1e-999",
    "1.5e3",
    "123456789012345.5",
    "1234567890123456.5",
    "0.000000001",
    "18446744073709551615",
    "18446744073709551616",
    "9999999999999999999",
    "-9223372036854775808",
    "-9223372036854775809",
    "99999999999999999999999999",
    "0x1",
    "1a",
    "1.5.5",
    "--1",
    "\u{feff}1",
    "\u{a0}1",
];

#[test]
fn what_is_valid_is_what_serde_json_accepts() {
    for text in VALUES {
        assert_same(text);
        assert_same(&format!("{{\"key\":{text}, \"key2\" : [ {text} ]}}"));
    }
    for line in include_str!("golden.jsonl").lines() {
        assert_same(line);
        // cut or with another byte at every place
        for at in (0..line.len()).filter(|at| line.is_char_boundary(*at)) {
            let (begin, end) = line.split_at(at);
            assert_same(begin);
            assert_same(&format!("{begin}\\{end}"));
            assert_same(&format!("{begin}\"{end}"));
            assert_same(&format!("{begin}\u{1}{end}"));
            assert_same(&format!("{begin}-{end}"));
            assert_same(&format!("{begin}0{end}"));
        }
    }
}
