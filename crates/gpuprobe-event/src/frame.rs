//! A frame of a call stack.

use std::fmt;

use serde::Serialize;

/// One frame of a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Frame {
    /// The return address.
    pub address: u64,
    /// The demangled name of the calling function.
    pub function: Option<String>,
    /// Bytes from the beginning of the function; the address in the file if the function is unknown.
    pub offset: u64,
    /// The file name without directories; `None` for code outside of any file.
    pub module: Option<String>,
    /// Source file and line of the call.
    pub file: Option<String>,
    pub line: Option<u32>,
    /// The function was inlined into the one of the next frame, which has the same address.
    pub inlined: bool,
}

/// `function (file:line)`, or as much as is known.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module = self.module.as_deref();
        match (&self.function, &self.file, self.line) {
            (Some(function), Some(file), Some(line)) => write!(f, "{function} ({file}:{line})"),
            (Some(function), ..) => {
                write!(f, "{function}+{:#x} ({})", self.offset, module.unwrap_or("?"))
            }
            (None, ..) => match module {
                Some(module) => write!(f, "{module}+{:#x}", self.offset),
                None => write!(f, "{:#x}", self.address),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_show_what_is_known() {
        let bare = Frame { address: 0x55, offset: 0x10, ..Frame::default() };
        assert_eq!(bare.to_string(), "0x55");
        let module = Frame { module: Some("a.so".to_owned()), ..bare };
        assert_eq!(module.to_string(), "a.so+0x10");
        let function = Frame { function: Some("f(int)".to_owned()), ..module };
        assert_eq!(function.to_string(), "f(int)+0x10 (a.so)");
        let line = Frame { file: Some("f.cc".to_owned()), line: Some(3), ..function };
        assert_eq!(line.to_string(), "f(int) (f.cc:3)");
    }
}
