//! A job of eight ranks on one communicator: rank 3 is one collective behind, and rank 5 made another one.

use std::borrow::Cow;

use gpuprobe_event::{Api, Call, Event, Tgid, Tid, Value};

use super::call;

const RANKS: u32 = 8;

fn nccl(name: &str, rank: u32, args: Vec<(&'static str, Value)>) -> Event {
    let args = args.into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect();
    let pid = 4000 + rank;
    let call = call(u64::from(rank) + 1, Api::Nccl, name, 5000, 0);
    Event::Call(Box::new(Call {
        tgid: Tgid(pid),
        tid: Tid(pid),
        process: "train<b>\x1b[31m".into(),
        args: Some(args),
        ..call
    }))
}

fn collective(name: &str, rank: u32, count: u64) -> Event {
    let arguments = vec![
        (if name == "ncclAllGather" { "sendcount" } else { "count" }, Value::Uint(count)),
        ("datatype", Value::Name("ncclFloat32".into())),
        ("comm", Value::Hex(0x5b00)),
    ];
    nccl(name, rank, arguments)
}

pub(crate) fn collective_events() -> Vec<Event> {
    let mut events: Vec<_> = (0..RANKS)
        .map(|rank| {
            let arguments = vec![
                ("comm", Value::Hex(0x5b00)),
                ("nranks", Value::Int(RANKS.into())),
                ("commId", Value::Hex(0xfeed_0001)),
                ("rank", Value::Int(rank.into())),
            ];
            nccl("ncclCommInitRank", rank, arguments)
        })
        .collect();
    for step in 0..3 {
        for rank in 0..RANKS {
            events.push(match (step, rank) {
                (1, 5) => collective("ncclAllGather", rank, 4096),
                (2, 3) => nccl("ncclSend", rank, vec![("comm", Value::Hex(0x5b00))]),
                _ => collective("ncclAllReduce", rank, 1 << 20),
            });
        }
    }
    events
}
