//! Reads the stacks of calls. A trace has a stack once for each call site, with its first call.

use std::collections::HashMap;
use std::sync::Arc;

use super::most;
use crate::cut::cut;
use crate::ids::SiteId;
use crate::trace::json::{Json, Object};

/// Bytes of stacks that are remembered. Calls from further call sites have none, unless their own line has it.
const MOST_BYTES: usize = 64 << 20;

/// The stacks of the call sites that were read.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    by_site: HashMap<SiteId, Arc<[String]>>,
    bytes: usize,
}

impl Stacks {
    /// The stack of a call, from this line or from an earlier one with the same call site.
    pub(super) fn of_call(&mut self, object: Object<'_>, site: Option<SiteId>) -> Option<Arc<[String]>> {
        let Some(frames) = object.get("stack").and_then(Json::as_list) else {
            return self.by_site.get(&site?).cloned();
        };
        let stack: Arc<[String]> = innermost(frames).into();
        if let Some(site) = site
            && self.bytes < MOST_BYTES
            && !self.by_site.contains_key(&site)
        {
            let frames = stack.iter().map(|frame| frame.len() + size_of::<String>());
            self.bytes += frames.sum::<usize>() + size_of::<(SiteId, Arc<[String]>)>();
            self.by_site.insert(site, Arc::clone(&stack));
        }
        Some(stack)
    }
}

/// The innermost frames that fit, and the number of the others.
fn innermost<'a>(frames: impl Iterator<Item = Json<'a>> + Clone) -> Vec<String> {
    let mut room = most::STACK;
    let fits = |frame: &String| {
        let bytes = frame.len() + size_of::<String>();
        room.checked_sub(bytes).inspect(|left| room = *left).is_some()
    };
    let texts = frames.clone().take(most::ENTRIES).filter_map(Json::as_str);
    let mut kept: Vec<_> =
        texts.map(|frame| cut(frame, most::FUNCTION).into_owned()).take_while(fits).collect();
    let more = frames.filter(|frame| frame.as_str().is_some()).count() - kept.len();
    if more > 0 {
        kept.push(format!("({more} more)"));
    }
    kept
}
