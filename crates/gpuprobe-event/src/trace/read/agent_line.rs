//! Reads the lines of what the agent inside a process reports.

use std::sync::Arc;

use super::earlier::Earlier;
use super::{END_OF_TIME, dim3, hex_field, most, nanoseconds, number, scaled, small};
use crate::agent::{Collection, GraphRecords, RangeKind};
use crate::agent_event::{AgentEvent, RangeEvent};
use crate::copy_kind::CopyDirection;
use crate::execution::{Execution, ExecutionKind, SubmittingCall};
use crate::ids::{Tgid, Tid};
use crate::trace::json::{Json, Object};

impl Earlier {
    pub(super) fn execution(&mut self, object: Object<'_>) -> Option<Execution> {
        let (start_ns, end_ns) = interval(object)?;
        let tid = Tid(small(object, "tid")?);
        let queued_ns = object.get("queued_us").and_then(|us| scaled(us, 3));
        let submission = number(object, "launch").zip(queued_ns);
        Some(Execution {
            id: number(object, "event_id")?,
            tgid: Tgid(small(object, "pid")?),
            process: self.names.share(object.get("process")?.as_str()?, most::NAME),
            kind: self.execution_kind(object)?,
            start_ns,
            end_ns,
            gpu: small(object, "gpu")?,
            context: small(object, "context")?,
            stream: small(object, "stream")?,
            correlation: small(object, "correlation")?,
            graph: small(object, "graph"),
            submission: submission.map(|(call, queued_ns)| SubmittingCall { call, tid, queued_ns }),
        })
    }

    fn execution_kind(&mut self, object: Object<'_>) -> Option<ExecutionKind> {
        Some(match object.get("op")?.as_str()? {
            "kernel" => {
                let name = object.get("name")?.as_str()?;
                let is_known = name != ExecutionKind::UNKNOWN_KERNEL;
                ExecutionKind::Kernel {
                    name: is_known.then(|| self.names.share(name, most::KERNEL)),
                    grid: dim3(object.get("grid")?)?,
                    block: dim3(object.get("block")?)?,
                    shared_bytes: small(object, "shared").unwrap_or(0),
                }
            }
            "copy" => {
                let direction = object.get("kind").and_then(Json::as_str).and_then(CopyDirection::from_word);
                ExecutionKind::Copy {
                    direction: direction.filter(|it| it.is_known()).unwrap_or(CopyDirection::Unknown),
                    bytes: number(object, "size")?,
                }
            }
            "memset" => ExecutionKind::Memset { bytes: number(object, "size")? },
            "graph" => ExecutionKind::Graph,
            _ => return None,
        })
    }

    pub(super) fn range(&mut self, object: Object<'_>) -> Option<RangeEvent> {
        let kind = RangeKind::from_word(object.get("range")?.as_str()?)?;
        let (start_ns, end_ns) = match kind {
            RangeKind::Mark => (nanoseconds(object)?, nanoseconds(object)?),
            RangeKind::Nested | RangeKind::Process => interval(object)?,
        };
        let domain = object.get("domain").and_then(Json::as_str);
        Some(RangeEvent {
            id: number(object, "event_id")?,
            tgid: Tgid(small(object, "pid")?),
            tid: Tid(small(object, "tid")?),
            process: self.names.share(object.get("process")?.as_str()?, most::NAME),
            kind,
            start_ns,
            end_ns,
            domain: domain.map(|domain| self.names.share(domain, most::NAME)),
            name: self.names.share(object.get("name")?.as_str()?, most::KERNEL),
            color: hex_field(object, "color").and_then(|color| u32::try_from(color).ok()).unwrap_or(0),
        })
    }

    pub(super) fn agent(&mut self, object: Object<'_>) -> Option<AgentEvent> {
        let (begin_ns, end_ns) = interval(object)?;
        let graphs = object.get("graphs").and_then(Json::as_str).and_then(GraphRecords::from_word);
        let text: Arc<str> = self.names.share(object.get("text")?.as_str()?, most::KERNEL);
        Some(AgentEvent {
            id: number(object, "event_id")?,
            tgid: Tgid(small(object, "pid")?),
            tid: Tid(small(object, "tid")?),
            process: self.names.share(object.get("process")?.as_str()?, most::NAME),
            begin_ns,
            end_ns,
            collection: Collection::from_word(object.get("name")?.as_str()?)?,
            graphs: graphs.unwrap_or(GraphRecords::Whole),
            code: small(object, "code").unwrap_or(0),
            text,
        })
    }
}

/// The beginning and the end.
fn interval(object: Object<'_>) -> Option<(u64, u64)> {
    let start_ns = nanoseconds(object)?;
    let duration_ns = scaled(object.get("duration_us")?, 3)?;
    let end_ns = start_ns.checked_add(duration_ns).filter(|end| *end < END_OF_TIME)?;
    Some((start_ns, end_ns))
}
