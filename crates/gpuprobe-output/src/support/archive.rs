//! Plain files in a compressed tar archive. They have the simplest form of POSIX (ustar), for which a crate would bring
//! more than it saves.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

const BLOCK: usize = 512;
/// Fields of a header: where each begins.
const MODE: usize = 100;
const SIZE: usize = 124;
const TIME: usize = 136;
const CHECKSUM: usize = 148;
const KIND: usize = 156;
const MAGIC: usize = 257;
/// The longest path that fits.
const MOST_NAME_BYTES: usize = 100;

/// A gzip-compressed tar archive of these files, all with this time in seconds since 1970.
pub fn archive(files: &[(String, Vec<u8>)], seconds: u64) -> io::Result<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    for (name, bytes) in files {
        out.write_all(&header(name, bytes.len(), seconds)?)?;
        out.write_all(bytes)?;
        out.write_all(&vec![0; bytes.len().next_multiple_of(BLOCK) - bytes.len()])?;
    }
    out.write_all(&[0; 2 * BLOCK])?;
    out.finish()
}

fn header(name: &str, length: usize, seconds: u64) -> io::Result<[u8; BLOCK]> {
    let mut block = [0; BLOCK];
    if name.len() > MOST_NAME_BYTES {
        return Err(io::Error::other(format!("{name} is too long for an archive")));
    }
    let mut put = |at: usize, text: &[u8]| {
        for (to, from) in block.iter_mut().skip(at).zip(text) {
            *to = *from;
        }
    };
    put(0, name.as_bytes());
    // only its owner may read it
    put(MODE, b"0000600\0");
    put(SIZE, format!("{length:011o}\0").as_bytes());
    put(TIME, format!("{seconds:011o}\0").as_bytes());
    put(KIND, b"0");
    put(MAGIC, b"ustar\x0000");
    // the sum over the header with spaces in place of the sum
    put(CHECKSUM, b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    let mut put = |text: &[u8]| block[CHECKSUM..].iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    put(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_unpacks_what_was_packed() {
        let files = [("a/empty.txt", ""), ("a/one.txt", "1\n"), ("a/block.txt", &"x".repeat(BLOCK))];
        let files = files.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar.gz");
        std::fs::write(&path, archive(&files, 1_700_000_000).unwrap()).unwrap();
        let unpacked =
            Command::new("tar").arg("-xzf").arg(&path).arg("-C").arg(folder.path()).status().unwrap();
        assert!(unpacked.success());
        for (name, bytes) in files {
            let file = folder.path().join(name);
            assert_eq!(std::fs::read(&file).unwrap(), bytes);
            let modified = file.metadata().unwrap().modified().unwrap();
            let seconds = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
            assert_eq!(seconds, 1_700_000_000);
        }
        assert!(archive(&[("x".repeat(101), Vec::new())], 0).is_err());
    }
}
