//! Texts of a program: cut and copied, without an allocation.

use std::ffi::c_char;

use crate::name_hash;

const MOST_BYTES: usize = 119;

/// Longer texts are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    /// 0 for an empty text.
    pub(crate) id: u64,
    length: u8,
    bytes: [u8; MOST_BYTES],
}

impl Text {
    pub(crate) const EMPTY: Self = Self { id: 0, length: 0, bytes: [0; MOST_BYTES] };

    /// # Safety
    ///
    /// Null, or a text that ends with 0.
    pub(super) unsafe fn of_bytes(text: *const c_char) -> Self {
        let mut bytes = [0; MOST_BYTES];
        let mut length = 0;
        while let Some(place) = bytes.get_mut(length).filter(|_| !text.is_null()) {
            // SAFETY: all before it were not 0, so that it belongs to the text.
            let byte = unsafe { text.add(length).cast::<u8>().read() };
            if byte == 0 {
                break;
            }
            *place = byte;
            length += 1;
        }
        Self::new(bytes, length)
    }

    /// # Safety
    ///
    /// Null, or a text of wide characters that ends with 0.
    pub(super) unsafe fn of_wide(text: *const libc::wchar_t) -> Self {
        let mut bytes = [0; MOST_BYTES];
        let (mut length, mut index) = (0, 0);
        while !text.is_null() {
            // SAFETY: all before it were not 0, so that it belongs to the text.
            let number = unsafe { text.add(index).read_unaligned() };
            if number == 0 {
                break;
            }
            let char =
                u32::try_from(number).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
            let Some(place) = bytes.get_mut(length..length + char.len_utf8()) else { break };
            char.encode_utf8(place);
            length += char.len_utf8();
            index += 1;
        }
        Self::new(bytes, length)
    }

    fn new(bytes: [u8; MOST_BYTES], length: usize) -> Self {
        let id = bytes.get(..length).filter(|text| !text.is_empty()).map_or(0, name_hash::of);
        Self { id, length: length as u8, bytes }
    }

    #[cfg(test)]
    pub(super) fn with_id(id: u64) -> Self {
        Self { id, ..Self::EMPTY }
    }

    pub(crate) fn to_text(self) -> String {
        let bytes = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_copied_up_to_their_end_and_cut() {
        // SAFETY: the texts end with 0, and none is at null.
        let (step, empty, none) = unsafe {
            (Text::of_bytes(c"step".as_ptr()), Text::of_bytes(c"".as_ptr()), Text::of_bytes(std::ptr::null()))
        };
        assert_eq!(step.to_text(), "step");
        assert_eq!((empty, none), (Text::EMPTY, Text::EMPTY));
        let long = std::ffi::CString::new(vec![b'x'; 500]).expect("a text");
        // SAFETY: it ends with 0.
        let cut = unsafe { Text::of_bytes(long.as_ptr()) };
        assert_eq!(cut.to_text(), "x".repeat(MOST_BYTES));
    }

    #[test]
    fn wide_texts_become_utf_8() {
        let wide: Vec<libc::wchar_t> = "schritt ä€𝄞\0".chars().map(|char| char as libc::wchar_t).collect();
        // SAFETY: it ends with 0.
        let text = unsafe { Text::of_wide(wide.as_ptr()) };
        assert_eq!(text.to_text(), "schritt ä€𝄞");
        let long: Vec<libc::wchar_t> = "€".repeat(100).chars().chain(['\0']).map(|char| char as _).collect();
        // SAFETY: it ends with 0.
        let cut = unsafe { Text::of_wide(long.as_ptr()) };
        assert_eq!(cut.to_text(), "€".repeat(MOST_BYTES / 3));
        // SAFETY: it ends with 0.
        let wrong = unsafe { Text::of_wide([libc::wchar_t::MAX, 0].as_ptr()) };
        assert_eq!(wrong.to_text(), "\u{fffd}");
    }
}
