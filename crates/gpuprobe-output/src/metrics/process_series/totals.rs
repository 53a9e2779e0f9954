//! All counters of some processes as plain numbers, which can be added and subtracted.

use std::collections::BTreeMap;

use super::bounded_labels::BoundedLabels;

/// Counters by metric and by their further labels as text. A sum may be negative until the counters of running processes
/// are added to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals(BTreeMap<(&'static str, String), i128>);

impl Totals {
    /// Adds the counter of one series.
    pub(crate) fn add_one(&mut self, family: &'static str, labels: &str, value: u64) {
        *self.0.entry((family, labels.to_owned())).or_default() += i128::from(value);
    }

    /// The same counters where several processes share series, which new kernels and commands get while there is room.
    pub(crate) fn bounded(&self, bounded: &mut BoundedLabels) -> Self {
        self.0.keys().for_each(|(_, label)| bounded.note_label(label));
        let mut all = Self::default();
        for ((family, labels), value) in &self.0 {
            *all.0.entry((family, bounded.counted_as(labels))).or_default() += *value;
        }
        all
    }

    pub(crate) fn add(&mut self, more: &Self) {
        for (key, value) in &more.0 {
            *self.0.entry(key.clone()).or_default() += *value;
        }
    }

    pub(crate) fn subtract(&mut self, less: &Self) {
        for (key, value) in &less.0 {
            *self.0.entry(key.clone()).or_default() -= *value;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The counters of one metric: further labels and value.
    pub(crate) fn of_metric(&self, family: &'static str) -> impl Iterator<Item = (&str, i128)> {
        let from = self.0.range((family, String::new())..);
        from.take_while(move |((of, _), _)| *of == family)
            .map(|((_, labels), value)| (labels.as_str(), *value))
    }
}
