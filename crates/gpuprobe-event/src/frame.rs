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
    /// A frame of Python code; the address is that of its code object.
    pub python: bool,
}

/// Marks Python frames that have no file name ending in `.py`, or no line.
const PYTHON: &str = "Python";
const UNKNOWN_FUNCTION: &str = "unknown";
/// PyTorch's backward pass runs in threads of its own, in which this is the outermost function of PyTorch.
const AUTOGRAD_MAIN: &str = "torch::autograd::Engine::thread_main";
/// What stands for the outermost frames of such a thread, if they are not known.
const AUTOGRAD_THREAD: &str = "autograd thread";
const MORE_FRAMES: &str = "...";

impl Frame {
    /// Stands for the outermost frames of a thread of PyTorch's backward pass, if they are not known.
    pub fn of_autograd_thread() -> Self {
        let (function, module) = (Some(MORE_FRAMES.to_owned()), Some(AUTOGRAD_THREAD.to_owned()));
        Self { function, module, ..Self::default() }
    }

    /// Whether it stands for frames that are not known.
    pub fn stands_for_autograd_thread(&self) -> bool {
        self.module.as_deref() == Some(AUTOGRAD_THREAD)
    }

    /// Whether a stack with this frame is that of a thread of PyTorch's backward pass.
    pub fn is_of_autograd_thread(&self) -> bool {
        self.stands_for_autograd_thread()
            || self.function.as_ref().is_some_and(|name| name.starts_with(AUTOGRAD_MAIN))
    }

    /// Reads a frame in the format that it is displayed in.
    pub fn of_text(text: &str) -> Self {
        let number = |hex: &str| u64::from_str_radix(hex, 16).ok();
        let inside = text.rsplit_once(" (").and_then(|(name, rest)| Some((name, rest.strip_suffix(')')?)));
        if let Some((name, inside)) = inside {
            let function = Some(name.to_owned());
            if let Some(python) = inside.strip_prefix(PYTHON)
                && (python.is_empty() || python.starts_with(' '))
            {
                let (file, line) = file_and_line(python.trim_start());
                let file = Some(file).filter(|file| !file.is_empty()).map(str::to_owned);
                return Self { function, file, line, python: true, ..Self::default() };
            }
            if inside == AUTOGRAD_THREAD {
                return Self { function, module: Some(inside.to_owned()), ..Self::default() };
            }
            if let Some((function, offset)) = name.rsplit_once("+0x")
                && let Some(offset) = number(offset)
            {
                let (function, module) = (Some(function.to_owned()), Some(inside.to_owned()));
                return Self { function, offset, module, ..Self::default() };
            }
            if let (file, Some(line)) = file_and_line(inside) {
                let (python, file) = (is_python_file(file), Some(file.to_owned()));
                return Self { function, file, line: Some(line), python, ..Self::default() };
            }
        }
        if let Some((module, offset)) = text.rsplit_once("+0x")
            && let Some(offset) = number(offset)
        {
            return Self { module: Some(module.to_owned()), offset, ..Self::default() };
        }
        match text.strip_prefix("0x").and_then(number) {
            Some(address) => Self { address, ..Self::default() },
            None => Self { function: Some(text.to_owned()), ..Self::default() },
        }
    }

    fn fmt_python(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.function.as_deref().unwrap_or(UNKNOWN_FUNCTION);
        match (self.file.as_deref(), self.line) {
            (Some(file), Some(line)) if is_python_file(file) => write!(f, "{function} ({file}:{line})"),
            (Some(file), Some(line)) => write!(f, "{function} ({PYTHON} {file}:{line})"),
            (Some(file), None) => write!(f, "{function} ({PYTHON} {file})"),
            (None, _) => write!(f, "{function} ({PYTHON})"),
        }
    }
}

fn is_python_file(file: &str) -> bool {
    file.ends_with(".py")
}

fn file_and_line(text: &str) -> (&str, Option<u32>) {
    let both = text.rsplit_once(':').and_then(|(file, line)| Some((file, Some(line.parse().ok()?))));
    both.unwrap_or((text, None))
}

/// `function (file:line)`, or as much as is known.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.python {
            return self.fmt_python(f);
        }
        let module = self.module.as_deref();
        if let (Some(function), true) = (&self.function, self.stands_for_autograd_thread()) {
            return write!(f, "{function} ({AUTOGRAD_THREAD})");
        }
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

    #[test]
    fn frames_are_read_as_they_are_written() {
        for (text, is_python) in [
            ("f(int)+0x2bd (lib.so)", false),
            ("f<a> (x.cc:12)", false),
            ("lib.so.13+0x5b45ee", false),
            ("0x55", false),
            ("Cache.grow.<locals>.<lambda> (/home/user/train.py:12)", true),
            ("<module> (Python /usr/local/bin/torchrun:8)", true),
            ("<module> (Python <string>:1)", true),
            ("f (Python train.py)", true),
            ("unknown (Python)", true),
            ("... (autograd thread)", false),
        ] {
            let frame = Frame::of_text(text);
            assert_eq!((frame.to_string().as_str(), frame.inlined, frame.python), (text, false, is_python));
        }
        assert_eq!(Frame::of_text("garbage (").function.as_deref(), Some("garbage ("));
        let forged = Frame::of_text("f (Python a:b:99999999999)");
        assert_eq!((forged.file.as_deref(), forged.line), (Some("a:b:99999999999"), None));
        assert!(!Frame::of_text("f+0x1 (Pythonic.so)").python);
    }
}
