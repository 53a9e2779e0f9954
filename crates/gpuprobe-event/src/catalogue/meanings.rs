//! Explanations of error codes for people.

use std::sync::LazyLock;

use super::Api;
use super::vendor::VENDORS;
use crate::table::sections;

/// Codes in ascending order with their meanings, one list per [`Api::ALL`].
static MEANINGS: LazyLock<[Vec<(i64, &'static str)>; Api::ALL.len()]> = LazyLock::new(|| {
    Api::ALL.map(|api| {
        let mut list: Vec<_> =
            rows().filter(|&(apis, ..)| names(apis, api)).map(|(_, code, words)| (code, words)).collect();
        list.sort_unstable();
        list
    })
});

/// What a status of a library means, in a few words, if possible with what to do.
pub fn meaning(api: Api, status: i64) -> Option<&'static str> {
    let list = &MEANINGS[api as usize];
    let at = list.binary_search_by_key(&status, |row| row.0).ok()?;
    Some(list[at].1)
}

/// Whether the header of a section names a library.
fn names(apis: &str, api: Api) -> bool {
    apis.split(' ').any(|word| word == api.as_str())
}

/// Header, code and meaning of every row.
fn rows() -> impl Iterator<Item = (&'static str, i64, &'static str)> {
    VENDORS.iter().flat_map(|vendor| sections(vendor.meanings)).flat_map(|(apis, body)| {
        body.into_iter().filter_map(move |line| {
            let (code, words) = line.split_once(' ')?;
            Some((apis, code.parse().ok()?, words))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::lines;

    #[test]
    fn every_failure_has_a_meaning_and_every_meaning_a_failure() {
        for (api, table) in Api::ALL.into_iter().filter_map(|api| Some((api, api.statuses()?))) {
            let name = table.name;
            let codes: Vec<i64> = table.values().iter().map(|v| v.0).collect();
            // the enum of NCCL ends with the number of results, which is not a result
            let is_error = |code: &&i64| **code != 0 && !(api == Api::Nccl && **code == 9);
            let missing: Vec<_> =
                codes.iter().filter(is_error).filter(|code| meaning(api, **code).is_none()).collect();
            assert!(missing.is_empty(), "{name} without a meaning: {missing:?}");
            let of_api = rows().filter(|&(apis, ..)| names(apis, api));
            let unknown: Vec<_> = of_api.filter(|(_, code, _)| !codes.contains(code)).collect();
            assert!(unknown.is_empty(), "not in {name}: {unknown:?}");
        }
    }

    #[test]
    fn every_line_is_read_and_no_code_occurs_twice() {
        let all: Vec<_> = VENDORS.iter().flat_map(|vendor| lines(vendor.meanings)).collect();
        let headers = all.iter().filter(|l| l.starts_with('['));
        assert_eq!(rows().count() + headers.count(), all.len());
        for api in Api::ALL {
            let list = &MEANINGS[api as usize];
            assert!(list.windows(2).all(|pair| pair[0].0 < pair[1].0), "{api}");
        }
        for (apis, ..) in rows() {
            assert!(apis.split(' ').all(|word| Api::from_name(word).is_some()), "{apis}");
        }
    }

    #[test]
    fn meanings_are_short_single_lines() {
        for (_, code, words) in rows() {
            assert!(words.len() <= 90 && words.is_ascii() && words.trim() == words, "{code}: {words}");
            assert!(!words.ends_with('.'), "{code}: {words}");
        }
    }

    #[test]
    fn the_libraries_share_numbers_where_they_mean_the_same() {
        assert_eq!(meaning(Api::Runtime, 700), meaning(Api::Driver, 700));
        assert_ne!(meaning(Api::Runtime, 3), meaning(Api::Driver, 3));
        assert_eq!(meaning(Api::Runtime, 35), Some("driver too old for this runtime"));
        assert_eq!(meaning(Api::Driver, 35), None);
        assert_eq!(meaning(Api::Nvml, 2), Some("an argument is not valid"));
        assert_eq!(meaning(Api::Runtime, -1), None);
        assert_eq!(meaning(Api::Runtime, 0), None);
    }
}
