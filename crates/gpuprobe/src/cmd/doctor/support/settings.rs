//! The daemon's settings file without what others must not read.

use gpuprobe_output::support::without_credentials;
use toml::de::{DeTable, DeValue};

/// Settings whose names contain one of these are not shown.
const SECRETS: [&str; 5] = ["password", "secret", "token", "header", "key"];

/// The settings in the order of the file, without comments; if it cannot be parsed, only that.
pub(super) fn without_secrets(text: &str) -> String {
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => return format!("# the settings file cannot be parsed: {}\n", error.message()),
    };
    let mut lines: Vec<_> =
        table.get_ref().iter().map(|(key, value)| (key.span().start, key.get_ref(), value)).collect();
    lines.sort_by_key(|(at, ..)| *at);
    let line = |(_, key, value): &(usize, &std::borrow::Cow<'_, str>, &toml::Spanned<DeValue<'_>>)| {
        // the name of a file with secrets is none
        let is_secret = !key.ends_with("_file")
            && !key.ends_with("-file")
            && SECRETS.iter().any(|word| key.to_ascii_lowercase().contains(word));
        match is_secret {
            true => format!("{key} = \"(removed)\"\n"),
            false => format!("{key} = {}\n", shown(value.get_ref())),
        }
    };
    lines.iter().map(line).collect()
}

fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{:?}", without_credentials(text)),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|error| error.to_string(), |number| number.to_string()),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Array(values) => {
            let values: Vec<_> = values.iter().map(|value| shown(value.get_ref())).collect();
            format!("[{}]", values.join(", "))
        }
        // no setting has such a value
        _ => "\"(removed)\"".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_comments_are_removed() {
        let text = "# the password is hunter2\nrefresh = 0.5\notlp = \"https://me:hunter2@host:4318/v1?token=hunter2\"\n\
                    otlp_headers_file = \"/etc/gpuprobe/headers\" # hunter2\npath = [\"/a\", \"/b\"]\nmemleak = true\n\
                    api_token = \"hunter2\"\nmax_exited = 0x10\n[x]\ny = \"hunter2\"\n";
        let shown = without_secrets(text);
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(
            shown,
            "refresh = 0.5\notlp = \"https://host:4318/v1\"\notlp_headers_file = \"/etc/gpuprobe/headers\"\n\
             path = [\"/a\", \"/b\"]\nmemleak = true\napi_token = \"(removed)\"\nmax_exited = 16\nx = \"(removed)\"\n"
        );
    }

    #[test]
    fn a_broken_file_is_not_shown() {
        let shown = without_secrets("refresh = \npassword = \"hunter2\"\n");
        assert!(
            shown.starts_with("# the settings file cannot be parsed: ") && !shown.contains("hunter2"),
            "{shown}"
        );
    }

    #[test]
    fn the_settings_of_the_package_stay_valid() {
        let packaged = include_str!("../../../../../../packaging/gpuprobe.toml");
        let shown = without_secrets(packaged);
        let parsed = DeTable::parse(&shown).unwrap();
        assert_eq!(parsed.get_ref().len(), DeTable::parse(packaged).unwrap().get_ref().len());
    }
}
