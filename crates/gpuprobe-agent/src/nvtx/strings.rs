//! Names of domains and registered strings. Programs make them once, long before a probe is attached.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use super::text::Text;

const MOST_STRINGS: usize = 2048;

const FREE: u8 = 0;
const WRITTEN: u8 = 1;
const READY: u8 = 2;

struct Slot {
    state: AtomicU8,
    text: UnsafeCell<Text>,
}

/// A string is never freed, so that its handle, the address of its slot, stays valid.
pub(super) struct Strings([Slot; MOST_STRINGS]);

// SAFETY: a text is written by the thread that took the slot and read by others after it is ready.
unsafe impl Sync for Strings {}

pub(super) static STRINGS: Strings = Strings::new();

impl Strings {
    const fn new() -> Self {
        Self(
            [const { Slot { state: AtomicU8::new(FREE), text: UnsafeCell::new(Text::EMPTY) } }; MOST_STRINGS],
        )
    }

    /// The handle of a text; null if it is empty or there is no room, which stands for no text.
    pub(super) fn handle(&self, text: Text) -> *const c_void {
        for slot in self.0.iter().filter(|_| text != Text::EMPTY) {
            match slot.state.compare_exchange(FREE, WRITTEN, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // SAFETY: this thread has taken the slot.
                    unsafe { slot.text.get().write(text) };
                    slot.state.store(READY, Ordering::Release);
                    return ptr::from_ref(slot).cast();
                }
                Err(READY) if self.text_of(slot) == text => return ptr::from_ref(slot).cast(),
                Err(_) => {}
            }
        }
        ptr::null()
    }

    /// The text of a handle, which may be anything.
    pub(super) fn text(&self, handle: *const c_void) -> Text {
        let offset = handle.addr().wrapping_sub(self.0.as_ptr().addr());
        let slot =
            self.0.get(offset / size_of::<Slot>()).filter(|_| offset.is_multiple_of(size_of::<Slot>()));
        slot.filter(|slot| slot.state.load(Ordering::Acquire) == READY)
            .map_or(Text::EMPTY, |slot| self.text_of(slot))
    }

    fn text_of(&self, slot: &Slot) -> Text {
        // SAFETY: a slot that is ready is not written again.
        unsafe { slot.text.get().read() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str) -> Text {
        let name = std::ffi::CString::new(name).expect("a text");
        // SAFETY: it ends with 0.
        unsafe { Text::of_bytes(name.as_ptr()) }
    }

    #[test]
    fn equal_texts_have_one_handle_and_there_is_a_limit() {
        static STRINGS: Strings = Strings::new();
        let strings = &STRINGS;
        let first = strings.handle(text("first"));
        assert_eq!(strings.handle(text("first")), first);
        let second = strings.handle(text("second"));
        assert_ne!(first, second);
        assert_eq!(strings.text(second), text("second"));
        assert!(strings.handle(Text::EMPTY).is_null());
        for number in 0..MOST_STRINGS {
            strings.handle(text(&number.to_string()));
        }
        assert!(strings.handle(text("one more")).is_null());
        assert_eq!(strings.handle(text("second")), second);
    }

    #[test]
    fn handles_that_are_none_have_no_text() {
        static STRINGS: Strings = Strings::new();
        let strings = &STRINGS;
        let first = strings.handle(text("first"));
        for wrong in [ptr::null(), first.wrapping_byte_add(8), first.wrapping_byte_sub(4096), ptr::dangling()]
        {
            assert_eq!(strings.text(wrong), Text::EMPTY);
        }
        assert_eq!(strings.text(first.wrapping_byte_add(size_of::<Slot>())), Text::EMPTY);
    }
}
