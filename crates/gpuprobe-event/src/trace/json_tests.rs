//! JSON, compared with serde_json.

use serde_json::Value;

use super::json::{Document, Json};

/// Parses with a document that was used before.
fn parse<'a>(document: &'a mut Document, text: &'a str) -> Option<Json<'a>> {
    document.parse(r#"{"a":{"a":"\n"},"b":[1,2]}"#).unwrap();
    document.parse(text)
}

#[test]
fn every_kind_of_value_is_read() {
    let text = r#"{"a":null,"b":true,"c":7,"d":-7,"e":1.5,"f":"x","g":"\u0041\n","h":[1,[]],"i":{"j":{}},"\"k":18446744073709551615}"#;
    let mut document = Document::default();
    let object = parse(&mut document, text).unwrap().as_object().unwrap();
    let get = |name: &str| object.get(name).unwrap();
    assert!(get("a").is_null());
    assert_eq!(get("b").as_bool(), Some(true));
    assert_eq!((get("c").as_u64(), get("c").as_i64(), get("c").as_f64()), (Some(7), Some(7), Some(7.0)));
    assert_eq!((get("d").as_u64(), get("d").as_i64(), get("d").as_f64()), (None, Some(-7), Some(-7.0)));
    assert_eq!((get("e").as_u64(), get("e").as_f64()), (None, Some(1.5)));
    assert_eq!((get("f").as_str(), get("g").as_str()), (Some("x"), Some("A\n")));
    let [one, empty] = get("h").as_array().unwrap();
    assert_eq!((one.as_u64(), empty.as_list().unwrap().count()), (Some(1), 0));
    assert!(get("h").as_array::<1>().is_none() && get("h").as_array::<3>().is_none());
    let inner = get("i").as_object().unwrap();
    assert!(inner.contains_key("j") && !inner.contains_key("a"));
    assert_eq!((get("\"k").as_u64(), get("\"k").as_i64()), (Some(u64::MAX), None));
    assert_eq!(object.iter().count(), 10);
    assert!(!object.contains_key("j") && !object.contains_key(""));
}

#[test]
fn the_last_field_with_a_name_counts() {
    let mut document = Document::default();
    let object =
        parse(&mut document, r#"{"a":1,"b":{"c":3,"c":4},"a":2,"\u0062b":5}"#).unwrap().as_object().unwrap();
    let number = |json: Option<Json<'_>>| json.unwrap().as_u64();
    assert_eq!(number(object.get("a")), Some(2));
    assert_eq!(number(object.get("b").unwrap().as_object().unwrap().get("c")), Some(4));
    assert_eq!(number(object.get("bb")), Some(5));
}

#[test]
fn names_with_the_same_slot_are_distinguished() {
    let names: Vec<_> = (0..500).map(|n| format!("n{n}")).collect();
    let fields: Vec<_> = names.iter().zip(0..).map(|(name, n)| format!("\"{name}\":{n}")).collect();
    let text = format!("{{{}}}", fields.join(","));
    let mut document = Document::default();
    let object = parse(&mut document, &text).unwrap().as_object().unwrap();
    for (name, n) in names.iter().zip(0..) {
        assert_eq!(object.get(name).and_then(Json::as_u64), Some(n), "{name}");
    }
    assert!(object.get("n500").is_none());
}

#[test]
fn decimal_numbers_are_scaled_exactly() {
    for (text, power, expected) in [
        ("1.5", 9, Some(1_500_000_000)),
        ("0.000000001", 9, Some(1)),
        ("9007199.254740991", 9, Some(9_007_199_254_740_991)),
        ("123456789.123456789", 9, Some(123_456_789_123_456_784)),
        ("7", 9, Some(7_000_000_000)),
        ("0.0005", 3, Some(1)),
        ("0.0004", 3, Some(0)),
        ("1e3", 3, Some(1_000_000)),
        ("0", 9, Some(0)),
        ("-0.5", 9, None),
        ("-1", 9, None),
        ("20000000000", 9, None),
        ("1e300", 9, None),
        ("\"1\"", 9, None),
    ] {
        let mut document = Document::default();
        assert_eq!(parse(&mut document, text).unwrap().scaled(power), expected, "{text}");
    }
}

#[test]
fn nesting_is_limited() {
    for deep in ["[".repeat(100_000), "{\"a\":".repeat(100_000)] {
        assert!(parse(&mut Document::default(), &deep).is_none());
    }
    for (depth, is_read) in [(127, true), (128, false)] {
        let text = "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(parse(&mut Document::default(), &text).is_some(), is_read);
        assert_same(&text);
    }
}

/// As serde_json reads it.
fn converted(json: Json<'_>) -> Value {
    if let Some(is) = json.as_bool() {
        is.into()
    } else if let Some(n) = json.as_u64() {
        n.into()
    } else if let Some(n) = json.as_i64() {
        n.into()
    } else if let Some(n) = json.as_f64() {
        n.into()
    } else if let Some(text) = json.as_str() {
        text.into()
    } else if let Some(object) = json.as_object() {
        object.iter().map(|(name, json)| (name.to_owned(), converted(json))).collect()
    } else {
        json.as_list().map_or(Value::Null, |items| items.map(converted).collect())
    }
}

/// Compares with serde_json, whose floating-point numbers may differ in the last bit.
fn assert_same(text: &str) {
    let mut document = Document::default();
    let (ours, theirs) = (parse(&mut document, text).map(converted), serde_json::from_str(text).ok());
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
