//! Names are sent once, under the hash of their text, and again from time to time: another gpuprobe may have attached.

use std::collections::HashMap;

use crate::name_hash;

/// When there are more, all are forgotten and sent anew.
const MOST_NAMES: usize = 65_536;
/// Longer names are cut.
pub(crate) const LONGEST_NAME: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By the address of the text. CUPTI never changes or frees one.
    by_address: HashMap<u64, u64>,
    by_id: HashMap<u64, Name>,
    /// Names to be sent.
    due: Vec<u64>,
}

#[derive(Debug)]
struct Name {
    id: u64,
    text: String,
    was_used: bool,
}

impl Names {
    /// The id of the text at an address; `text` reads it if it is new.
    pub(crate) fn id_at(&mut self, address: u64, text: impl FnOnce() -> String) -> u64 {
        if address == 0 {
            return 0;
        }
        if let Some(name) = self.by_address.get(&address).and_then(|id| self.by_id.get_mut(id)) {
            name.was_used = true;
            return name.id;
        }
        let text = text();
        let id = name_hash::of(text.as_bytes());
        self.use_id(id, || text);
        self.by_address.insert(address, id);
        id
    }

    /// Has the name of an id sent; `text` is asked for it if it is new.
    pub(crate) fn use_id(&mut self, id: u64, text: impl FnOnce() -> String) {
        if id == 0 {
            return;
        }
        if let Some(name) = self.by_id.get_mut(&id) {
            name.was_used = true;
            return;
        }
        if self.by_id.len() >= MOST_NAMES {
            self.by_id.clear();
            self.by_address.clear();
        }
        self.by_id.insert(id, Name { id, text: text(), was_used: true });
        self.due.push(id);
    }

    /// Has every name sent again that was used since the last time.
    pub(crate) fn repeat(&mut self) {
        for (id, name) in &mut self.by_id {
            if std::mem::take(&mut name.was_used) && !self.due.contains(id) {
                self.due.push(*id);
            }
        }
    }

    /// The names to be sent now.
    pub(crate) fn take_due(&mut self) -> Vec<(u64, String)> {
        let due = std::mem::take(&mut self.due);
        due.into_iter().filter_map(|id| Some((id, self.by_id.get(&id)?.text.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_sent_when_it_is_new_and_again_if_it_was_used() {
        let mut names = Names::default();
        let add = names.id_at(8, || "add".to_owned());
        assert_eq!(names.id_at(8, || unreachable!("it is known")), add);
        assert_eq!(names.id_at(16, || "add".to_owned()), add);
        assert_eq!(names.id_at(0, || unreachable!("there is none")), 0);
        let scale = 5;
        names.use_id(scale, || "scale".to_owned());
        names.use_id(0, || unreachable!("there is none"));
        assert_eq!(names.take_due(), [(add, "add".to_owned()), (scale, "scale".to_owned())]);
        assert!(names.take_due().is_empty());
        names.repeat();
        assert_eq!(names.take_due().len(), 2);
        names.use_id(scale, || unreachable!("it is known"));
        names.repeat();
        assert_eq!(names.take_due(), [(scale, "scale".to_owned())]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut names = Names::default();
        for number in 0..MOST_NAMES as u64 + 10 {
            names.id_at(number + 1, || number.to_string());
        }
        assert!(names.by_id.len() <= MOST_NAMES && names.by_address.len() <= MOST_NAMES);
    }
}
