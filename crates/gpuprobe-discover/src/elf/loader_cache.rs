//! Parses the dynamic loader's cache, /etc/ld.so.cache: the libraries of the host by name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::error::Defect;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Caches from before glibc 2.32 begin with a table in this older format, followed by the newer one.
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
const OLD_HEADER: usize = 16;
const OLD_ENTRY: usize = 12;
const HEADER: usize = 48;
const ENTRY: usize = 24;
const PATH_LIMIT: usize = 4096;

/// The machine of an entry, in the second byte of its flags.
const MACHINE: u32 = 0xff00;
const X86_64: u32 = 0x0300;
const AARCH64: u32 = 0x0a00;

/// The paths of all 64-bit libraries in the cache.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<PathBuf>, Defect> {
    let damaged = || Defect::Malformed("unknown format of the loader's cache; run ldconfig".into());
    let cache = newer_part(bytes).ok_or_else(damaged)?;
    let count = number(cache, MAGIC.len()).ok_or_else(damaged)? as usize;
    let entries = count.checked_mul(ENTRY).and_then(|size| cache.get(HEADER..HEADER.checked_add(size)?));
    let entries = entries.ok_or_else(damaged)?;
    Ok(entries.chunks_exact(ENTRY).filter_map(|entry| path_of(cache, entry)).collect())
}

fn newer_part(bytes: &[u8]) -> Option<&[u8]> {
    let start = if bytes.starts_with(OLD_MAGIC) {
        let entries = (number(bytes, OLD_MAGIC.len())? as usize).checked_mul(OLD_ENTRY)?;
        OLD_HEADER.checked_add(entries)?.checked_next_multiple_of(8)?
    } else {
        0
    };
    bytes.get(start..).filter(|rest| rest.starts_with(MAGIC))
}

fn path_of(cache: &[u8], entry: &[u8]) -> Option<PathBuf> {
    if !matches!(number(entry, 0)? & MACHINE, X86_64 | AARCH64) {
        return None;
    }
    let rest = cache.get(number(entry, 8)? as usize..)?;
    let path = &rest[..rest.iter().take(PATH_LIMIT).position(|&b| b == 0)?];
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::Xorshift;

    pub(crate) fn cache(entries: &[(u32, &str)]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend((entries.len() as u32).to_le_bytes());
        out.resize(HEADER, 0);
        let mut strings = Vec::new();
        for (flags, path) in entries {
            let at = (HEADER + entries.len() * ENTRY + strings.len()) as u32;
            for word in [*flags, at, at, 0, 0, 0] {
                out.extend(word.to_le_bytes());
            }
            strings.extend_from_slice(path.as_bytes());
            strings.push(0);
        }
        out.extend(strings);
        out
    }

    #[test]
    fn paths_of_64_bit_libraries_are_read() {
        let new =
            cache(&[(0x0303, "/a/libcuda.so.1"), (0x0803, "/x32/libcuda.so.1"), (3, "/i386/libcuda.so.1")]);
        assert_eq!(parse(&new).unwrap(), [Path::new("/a/libcuda.so.1")]);
        let mut old = OLD_MAGIC.to_vec();
        old.extend(1u32.to_le_bytes());
        old.extend([0; OLD_ENTRY]);
        old.resize(32, 0);
        old.extend(new);
        assert_eq!(parse(&old).unwrap(), [Path::new("/a/libcuda.so.1")]);
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let good = cache(&[(0x0303, "/a/libcuda.so.1"), (0x0303, "/b/libcudart.so.12")]);
        for length in 0..HEADER + ENTRY {
            assert!(parse(&good[..length]).is_err(), "{length}");
        }
        let mut random = Xorshift(42);
        for _ in 0..2000 {
            let mut bytes = good.clone();
            let at = random.next() as usize % bytes.len();
            bytes[at] = random.next() as u8;
            parse(&bytes).ok();
        }
    }

    #[test]
    fn the_cache_of_this_host_is_read() {
        // Hosts with another C library have none.
        if let Ok(bytes) = std::fs::read("/etc/ld.so.cache") {
            let paths = parse(&bytes).unwrap();
            assert!(paths.iter().any(|path| path.ends_with("libc.so.6")), "{} paths", paths.len());
        }
    }
}
